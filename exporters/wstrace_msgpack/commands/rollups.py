"""`wstrace convert --rollup 1s`: a trace as sums by second, in folders that engines read as one table."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from wstrace.analysis.rollup import Rollup, whole_seconds
from wstrace.analysis.symbols import symbolizer_of
from wstrace.batch import Batch
from wstrace.errors import UsageError
from wstrace.output_rights import callers_rights
from wstrace.rollup_files import name_of, write_rollup
from wstrace.schema import CALL_SITE, PAGE_FAULT, PROCESS, RESIDENT_PAGES
from wstrace.table import Selection
from wstrace_msgpack.read.decoder import Decoder
from wstrace_msgpack.read.part import Part
from wstrace_msgpack.read.trace import TraceFile
from wstrace_msgpack.storage.store import store_of
from wstrace_msgpack.storage.urls import can_list, is_url, scheme_of, shown

#: In this order: names come before what they name, and a snapshot's container is that of its process's faults.
_STREAMS = {
    PROCESS.name: None,
    CALL_SITE.name: None,
    PAGE_FAULT.name: ("time_ns", "pid", "flags", "file", "kind", "pc", "pc_mapping", "pc_file", "stack", "host",
                      "cgroup", "sampled"),
    RESIDENT_PAGES.name: None,
}  # fmt: skip


def write_rollups(trace: TraceFile, folder: str, seconds: float, advance: Callable[[int], None]) -> tuple[int, int]:
    """Writes the rollup of each part of a trace; see write_rollup(). The same parts always give the same files.

    Args:
        trace: the trace. folder: that of all rollups.
        seconds: the length of an interval.
        advance: called with the number of faults that were read.

    Returns:
        (rows, files) that were written.

    Raises:
        UsageError: the interval is not a whole number of seconds that divides a day.
    """
    interval = whole_seconds(seconds)
    info = trace.info
    if "sampled" in trace.present(PAGE_FAULT.name):  # where rows tell it, those that do not are of an unsampled trace
        info.sampled = 1
    rollup = Rollup(info, symbolizer_of(info, [trace.mappings]), seconds=interval)
    of_ledger = sum(n for stage, _, n in trace.ledger.losses() if not stage.startswith(_OF_FILE))
    written = files = 0
    for part, streams in zip(trace.parts, _of_parts(trace), strict=True):
        for batch in streams:
            rollup.add(batch)
            if batch.schema is PAGE_FAULT:
                advance(len(batch))
        if part is trace.parts[-1] and of_ledger > rollup.lost:
            span = part.span()
            rollup.lose(span[1] if span else info.started_ns, of_ledger - rollup.lost)
        rows = rollup.take()
        name = f"{name_of(part.header.boot_id, part.header.created_ns)}-{part.header.part:05d}"
        written += len(rows)
        files += len(write_rollup(rows, folder, name))
    return written, files


@contextmanager
def folder_or_store(output: str) -> Iterator[str]:
    """The folder to write rollups to. Of a URL it is a new one, whose files are put there once all are written.

    Raises:
        UsageError: the URL is that of a web server, or holds credentials.
        StoreError: the store does not take a file; those before it are there, and are replaced by the next try.
    """
    if not is_url(output):
        yield output
        return
    if not can_list(output) or shown(output) != output:
        raise UsageError(f"-o {shown(output)} takes no rollups", "write s3://BUCKET/FOLDER, gs:// or az://")
    with callers_rights():
        folder = tempfile.mkdtemp(prefix="wstrace-rollup-")
    try:
        yield folder
        for path in sorted(Path(folder).rglob("*.parquet")):
            store_of(scheme_of(output)).put(
                f"{output.rstrip('/')}/{path.relative_to(folder).as_posix()}", path.read_bytes()
            )
    finally:
        with callers_rights():
            shutil.rmtree(folder, ignore_errors=True)


#: Bytes and frames of a damaged file are not records.
_OF_FILE = ("file_cut", "file_lost_bytes", "file_lost_frames", "file_bad_frames")


def _of_parts(trace: TraceFile) -> Iterator[Iterator[Batch]]:
    """The batches of each part."""
    streams = [zip(*trace.decoders(Selection(name, columns)), strict=True) for name, columns in _STREAMS.items()]
    decoders = [list(each)[1] for each in streams]
    for number, part in enumerate(trace.parts):
        yield _batches(part, [of_stream[number] for of_stream in decoders])


def _batches(part: Part, decoders: list[Decoder]) -> Iterator[Batch]:
    for decoder in decoders:
        for frame in part.read(decoder.kinds, decoder.selection):
            batch = decoder.batch(frame)
            if batch is not None:
                yield batch
