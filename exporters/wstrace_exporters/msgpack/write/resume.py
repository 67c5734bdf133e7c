"""Resumes an unfinished trace: truncates it after its last good frame, and continues with the next sequence number."""

from __future__ import annotations

import contextlib

import numpy as np

from wstrace.errors import OutputError
from wstrace.schema import TABLES
from wstrace_exporters.msgpack.format import osfile
from wstrace_exporters.msgpack.format.index import unpack_index
from wstrace_exporters.msgpack.format.layout import END, INDEX, FrameError
from wstrace_exporters.msgpack.read.discover import parts_of
from wstrace_exporters.msgpack.read.part import Part
from wstrace_exporters.msgpack.read.scan import frame_at
from wstrace_exporters.msgpack.write.frame_file import Sink
from wstrace_exporters.msgpack.write.parts import Parts


def resume(parts: Parts) -> None:
    """Continues the last part of an existing trace; after a reboot of the machine, begins a new part.

    Raises:
        OutputError: another process is writing the file, or it cannot be opened or truncated.
        TraceFileError: the file is no trace.
    """
    try:
        _resume(parts)
    except OSError as error:
        raise OutputError(f"cannot continue {parts.path}: {error.strerror or error}") from None


def _resume(parts: Parts) -> None:
    files = parts_of(parts.path)
    out = osfile.OutputFile(files[-1], resume=True)
    try:
        last = Part(files[-1], scan=True)
        try:
            parts.number = last.header.part
            parts.written = files
            boot = osfile.boot_id()
            if not boot or last.header.boot_id != boot:  # each boot has its own clock
                out.close()
                parts.begin_next(last.file_id)
            else:
                _append(parts, last, out)
        finally:
            last.close()
    except BaseException:
        with contextlib.suppress(OSError):  # the first failure is the one to tell
            out.close()
        raise


def _append(parts: Parts, last: Part, out: osfile.OutputFile) -> None:
    entries = last.entries
    rows = last.frame_rows()
    if entries["kind"][-1] == END:
        entries = entries[:-1]
    end = int(entries["offset"][-1] + entries["length"][-1])
    cut = out.size() - end
    pages, paged = [], set[int]()
    for offset in entries["offset"][entries["kind"] == INDEX].tolist():
        frame = frame_at(last.input, offset, last.file_id, last.limits)
        try:
            listed = unpack_index(frame.body, last.limits).entries[:, 1].tolist() if frame is not None else []
        except FrameError:
            continue
        pages.append(offset)
        paged.update(listed)
    loose = entries[(entries["kind"] != INDEX) & ~np.isin(entries["offset"], list(paged))]
    seq = int(entries["seq"].max()) + 1
    out.cut(end)
    sink = Sink(out, last.file_id or b"", seq=seq, offset=end, sync=parts.sync)
    sink.restore([(*entry[:6], last.streams[entry[6]], entry[7]) for entry in loose.tolist()], pages, rows)
    tables = last.tables
    parts.next_string = len(tables.names)
    parts.bases = {space: int(last.row_ids(table).max(initial=0)) for table, space in TABLES.items()}
    parts.bases["map"] = int(tables.mappings()["id"].max(initial=0))
    parts.table_rows = tables.n_mappings
    parts.shuffle = "shuffle" in last.header.need
    parts.use(sink)
    if last.end is not None and last.end.ledger:  # the sums of a session that has ended stood in the END
        sink.mark("ledger", ledger=last.end.ledger)
    sink.mark("resume", frames=seq, cut=cut, ended=last.end is not None)
