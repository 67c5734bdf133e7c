"""The parts of a trace on the disk: when the next one begins, and which old ones are removed; and how frames get there.

Frames are appended each whole or not at all, with the index of what was written. When the disk is full or fails, the
file is truncated to the end of its last whole frame, and the frame is dropped. A frame gets its sequence number when it
is written, so a dropped one leaves no gap; a mark `lost` counts its rows.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from wstrace.clock import now_ns
from wstrace.errors import OutputError
from wstrace.output_file import remove
from wstrace_exporters.msgpack.format import frames, layout, osfile
from wstrace_exporters.msgpack.format.frames import IndexPage, pack_index
from wstrace_exporters.msgpack.format.values import packb
from wstrace_exporters.msgpack.read.discover import id_of, parts_of

#: The number of values of an index entry: kind, offset, length, n, t0, t1, stream, pids.
_ENTRY_PARTS = 8
_INDEX_STREAMS = 4096
#: A ledger that counts nothing, of a last part; none says that another part follows.
NOTHING = {"recorded": 0}
#: How often a frame is tried: a single error of a disk costs nothing.
_TRIES = 3


class Sink:
    """Appends frames to one part of a trace.

    out: the open file. file_id: the 8 bytes that identify the file in each of its frames. sync: when to call fsync():
    "none" (only at the end), "interval" (at most once a second) or "frame"; "never".
    """

    def __init__(self, out: osfile.OutputFile, file_id: bytes, *, sync: str) -> None:
        self.out = out
        self.file_id = file_id
        self.seq = self.offset = 0
        self.rows: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()  # rows by stream
        self.error = ""  # why the last frame was not written
        self.why_dropped = ""  # why rows were dropped first
        self.unsafe = ""  # why written data may not be on the disk
        self.dead = ""  # why nothing can be written any more
        self._unmarked: Counter[str] = Counter()  # dropped rows that no mark counts yet
        self._sync = sync
        self._entries = array("Q")
        self._streams = {"": 0}  # name -> number in the index
        self._pages: list[int] = []
        self._synced_at = 0.0
        self._torn = False

    def append(
        self, kind: int, body: bytes, *, stream: str = "", n: int = 0, t: tuple[int, int] = (0, 0), pids: int = 0
    ) -> bool:
        """Writes a frame; returns False when the system refuses, and then nothing of it is in the file.

        kind, body: the frame. stream, n, t, pids: its stream, rows, times and set of processes in the index; for a mark
        that is no row, `stream` is the kind of the mark. Raises OutputError: the output can take no more, as a pipe
        without a reader.
        """
        if self.dead:
            raise OutputError(self.dead)
        self.settle()
        return self._write(kind, body, stream, n, t, pids)

    def drop(self, stream: str, n: int, why: str = "") -> None:
        """Counts rows that are not written; `why` "" means the last error of the output."""
        if n:
            self.why_dropped = self.why_dropped or why or self.error
            self.dropped[stream] += n
            self._unmarked[stream] += n

    def count_also(self, before: Sink) -> None:
        """Counts what happened to the part before as well, as it concerns the whole trace."""
        self.dropped.update(before.dropped)
        self.why_dropped, self.unsafe = before.why_dropped or self.why_dropped, before.unsafe or self.unsafe

    def settle(self) -> None:
        """Writes a mark of the rows that were dropped since the last one."""
        lost = {"lost": dict(self._unmarked), "why": self.error or self.why_dropped}
        if (
            self._unmarked
            and not self.dead
            and self._write(layout.MARK, packb({"m": "lost", "t": now_ns(), "by": "writer", **lost}), "lost")
        ):
            self._unmarked.clear()

    def mark(self, kind: str, **fields: Any) -> bool:
        """Appends a mark with the present time."""
        return self.append(layout.MARK, packb({"m": kind, "t": now_ns(), **fields}), stream=kind)

    def _write(
        self, kind: int, body: bytes, stream: str = "", n: int = 0, t: tuple[int, int] = (0, 0), pids: int = 0
    ) -> bool:
        data = memoryview(layout.pack_frame(self.file_id, kind, self.seq, body))
        if not any(self._tried(data) for _ in range(_TRIES)):
            return False
        if kind not in (layout.INDEX, layout.END):
            self._entries.extend((kind, self.offset, len(data), n, *t, self._number(stream), pids))
        self.error = ""
        self.offset += len(data)
        self.seq += 1
        if n:
            self.rows[stream] += n
        self._sync_if_due()
        if len(self._entries) >= layout.INDEX_ENTRIES * _ENTRY_PARTS:
            self._index_page()
        return True

    def _tried(self, data: memoryview) -> bool:
        done = 0
        try:
            self._cut_torn()
            while done < len(data):
                done += self.out.write(data[done:])
        except OSError as error:
            self.error = error.strerror or str(error)
            if not self.out.regular:
                self.dead = f"{self.out.path}: {self.error}"
                remedy = "its reader has ended; write -o FILE" if error.errno == errno.EPIPE else ""
                raise OutputError(self.dead, remedy) from None
            self._torn = self._torn or done > 0
            with contextlib.suppress(OSError):  # so that the file ends with a whole frame; tried again before a write
                self._cut_torn()
        return done == len(data)

    def _number(self, stream: str) -> int:
        """The number of a stream in the index; 0 past a limit, so that readers open the frame."""
        if len(self._streams) >= _INDEX_STREAMS:
            return self._streams.get(stream, 0)
        return self._streams.setdefault(stream, len(self._streams))

    def _cut_torn(self) -> None:
        if self._torn:
            self.out.cut(self.offset)
            self._torn = False

    def _sync_if_due(self) -> None:
        now = time.monotonic()
        if self._sync == "frame" or (self._sync == "interval" and now - self._synced_at >= 1.0):
            self._synced_at = now
            try:
                self.out.sync()
            except OSError as error:
                # The next fsync() does not report the pages that this one could not write: see fsync(2).
                self.unsafe = self.unsafe or f"fsync failed: {error.strerror or error}"

    def _index_page(self) -> None:
        entries = np.array(self._entries, "<u8").reshape(-1, _ENTRY_PARTS)
        page = IndexPage(entries[:, :6], list(self._streams)[1:], entries[:, 6], entries[:, 7])
        del self._entries[:]
        at = self.offset
        if len(entries) and self._write(layout.INDEX, pack_index(page)):
            self._pages.append(at)

    def end(self, ledger: dict[str, int]) -> None:
        """Writes INDEX and END, then syncs the file and its directory, but for sync="never".

        Raises OutputError: the end cannot be written, and the file ends with its last whole frame; or the file is
        complete, but the system does not confirm that it is on the disk.
        """
        self.settle()
        self._index_page()
        end = {"index": self._pages, "frames": self.seq + 1, "rows": dict(self.rows), "ledger": ledger, "clean": True}
        body = packb(end)
        if len(body) > layout.END_BYTES - layout.HEAD_BYTES:
            self.mark("ledger", ledger=ledger)
            self._index_page()
            body = packb({**end, "index": self._pages, "frames": self.seq + 1, "ledger": {}})
        written = self._write(layout.END, body)
        unsafe = self.out.finish(sync=self._sync != "never")
        self.unsafe = self.unsafe or unsafe
        if not written:
            lost = sum(self.dropped.values())
            raise OutputError(
                f"{self.out.path}: {self.error}: the trace is cut, "
                + (f"{lost:,} records are not in it" if lost else "its end is missing"),
                f"what is there can be read; `wstrace convert {self.out.path} -o OUT.wst` ends it cleanly",
            )
        if self.unsafe:
            raise OutputError(
                f"{self.out.path} may not survive a power failure: {self.unsafe}", "copy it to another disk"
            )


#: Seconds after which a next part that could not be opened is tried again.
_RETRY_SECONDS = 10.0


class Ended(NamedTuple):
    """A part that has ended: when it began and ended, in ns of the records' clock, its bytes, its rows by stream."""

    path: str
    began_ns: int
    ended_ns: int
    n_bytes: int
    rows: Counter[str]


class Parts:
    """The part that is being written, and those before it that are on the disk.

    Args:
        path: the path of part 0; "-" is standard output.
        command: the traced command, for the header.
        like: the header of another trace, of which clock, host and command are kept (convert, replay), or None.
        force: whether existing parts may be overwritten.
        resume: whether to go on behind the parts of an earlier session, if there are any.
        rotate_bytes, rotate_seconds: the size and age at which a new part begins; 0 = never.
        keep: how many of the newest parts remain on the disk; 0 = all.
        sync: see Sink.
        ledger: gives what was counted in a part that is followed by another one, when it ends.

    Raises:
        OutputError: the first part cannot be opened, or another process is writing the trace.
        TraceFileError: the part to go on behind is of another version.
    """

    def __init__(
        self,
        path: str,
        *,
        command: Sequence[str] = (),
        like: frames.Header | None = None,
        force: bool = False,
        resume: bool = False,
        rotate_bytes: int = 0,
        rotate_seconds: float = 0.0,
        keep: int = 0,
        sync: str = "interval",
        ledger: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self.path, self.like = path, like
        self._command, self._force, self._keep, self._sync, self._ledger = list(command), force, keep, sync, ledger
        self._rotate_bytes, self._rotate_ns = rotate_bytes, int(rotate_seconds * 1e9)
        self._session = os.urandom(layout.SESSION_BYTES)
        self._retry_at = 0.0
        self.refused = ""  # why the next part cannot be opened now
        self.before: list[Ended] = []
        self._rows: Counter[str] = Counter()  # in parts before this one
        there = layout.parts_there(path)
        if resume and there:
            self.before = [Ended(part, 0, 0, 0, Counter()) for part in parts_of(path)]
            last = self.before[-1].path
            if osfile.is_being_written(last):
                raise OutputError(f"{last} is being written by another wstrace", "choose another name")
            self._open(layout.name_and_number(last)[1] + 1, id_of(last))
            return
        old = [part for part in there if part != path]
        if old and not force:
            raise OutputError(f"{old[0]} exists", "choose another name, or overwrite all parts with -f (force=true)")
        self._open(0, None)
        for part in old:
            remove(part)

    def _open(self, number: int, prev: bytes | None) -> None:
        """Opens a part and writes its header; `prev` is the file id of the part before. Raises OutputError."""
        out = osfile.OutputFile(layout.part_path(self.path, number), force=self._force)
        tail = number % (1 << 8 * (layout.FILE_ID_BYTES - layout.SESSION_BYTES))
        sink = Sink(
            out, self._session + tail.to_bytes(layout.FILE_ID_BYTES - layout.SESSION_BYTES, "big"), sync=self._sync
        )
        if not sink.append(layout.HEADER, self._header(sink.file_id, number, prev).pack()):
            out.close()
            if out.created:
                remove(out.path)
            raise OutputError(f"cannot write {out.path}: {sink.error}")
        self.number, self.sink, self.began_ns = number, sink, now_ns()

    def _header(self, file_id: bytes, number: int, prev: bytes | None) -> frames.Header:
        from wstrace import __version__

        like = self.like
        if like is None:
            clocks = osfile.clocks()
            like = frames.Header(
                created_ns=clocks["realtime"],
                boot_id=osfile.boot_id(),
                clock={"name": osfile.CLOCK_NAME, "realtime_offset_ns": clocks["realtime"] - clocks["monotonic"]},
                page_size=osfile.page_size(),
                host=dict(osfile.host()),
                command=self._command,
            )
        writer = f"wstrace {__version__}"
        return replace(like, version=layout.VERSION, need=[], id=file_id, part=number, prev=prev, writer=writer)

    def due(self, full: bool) -> bool:
        """Whether the next part is to begin: by size, by age, or because a table is `full` for readers."""
        sink = self.sink
        if not sink.out.regular or sink.error or time.monotonic() < self._retry_at:
            return False
        late = 0 < self._rotate_ns <= now_ns() - self.began_ns
        return full or late or 0 < self._rotate_bytes <= sink.offset

    def next(self) -> bool:
        """Begins the next part and ends this one; returns False, and keeps this one, when no file can be opened."""
        old, began_ns = self.sink, self.began_ns
        try:
            self._open(self.number + 1, old.file_id)  # first, as a trace of which no part is locked is not written
        except OutputError as error:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            if error.why != self.refused:
                self.refused = error.why
                old.mark("rotation", why=error.why)
            return False
        self.refused = ""
        with contextlib.suppress(OutputError):  # without its end it reads as cut, but its rows can be read
            old.end(self._ledger())
        self.sink.count_also(old)
        self._rows.update(old.rows)
        self.before.append(Ended(old.out.path, began_ns, now_ns(), old.offset, old.rows))
        while 0 < self._keep <= len(self.before):
            remove(self.before.pop(0).path)
        return True

    def end(self, ledger: dict[str, int]) -> None:
        """Ends the last part. Raises OutputError when that fails, or when the next part could not be opened."""
        self.sink.end(ledger or NOTHING)
        if self.refused:
            raise OutputError(
                f"no next part was begun: {self.refused}; the records since then are in {self.sink.out.path}",
                "clear the way, or write to a folder that nobody else can write to",
            )

    def discard(self) -> None:
        """Closes the part that is being written, and removes it if this process created it."""
        with contextlib.suppress(OSError):
            self.sink.out.close()
        if self.sink.out.created:
            remove(self.sink.out.path)

    def rows(self, stream: str) -> int:
        """The number of rows of a stream that this writer has written, in all parts."""
        return self._rows[stream] + self.sink.rows[stream]
