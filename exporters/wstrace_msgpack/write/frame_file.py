"""Frames to a file, one write() each, whole or not at all; and the index of what was written.

When the disk is full or fails, the file is cut to the end of its last whole frame, a bounded number of frames waits in
memory, and what does not fit there is dropped and counted. A frame gets its seq when it is written, so a dropped one
leaves no gap: the file says of it in a `lost` mark.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from typing import Any, NamedTuple

import numpy as np

from wstrace.clock import now_ns
from wstrace.errors import OutputError
from wstrace.schema import PROCESS, TABLES
from wstrace_msgpack.format import osfile
from wstrace_msgpack.format.index import IndexPage, pack_index
from wstrace_msgpack.format.layout import (
    END,
    END_BYTES,
    EVENTS,
    HEAD_BYTES,
    INDEX,
    INDEX_ENTRIES,
    MARK,
    SNAPSHOT,
    pack_frame,
)
from wstrace_msgpack.format.values import packb

RETRY_SECONDS = 1.0
#: kind, offset, length, n, t0, t1, stream, pids
_ENTRY_PARTS = 8
_INDEX_STREAMS = 4096
#: bytes of frames that wait for a disk; tables, marks and processes have this much more room
QUEUE_BYTES, ESSENTIAL_ROOM = 4 << 20, 2


class Waiting(NamedTuple):
    """A frame without its seq: body, and what the index and the ledger say of it."""

    kind: int
    body: bytes
    stream: str
    n: int
    t0: int = 0
    t1: int = 0
    pids: int = 0


class Sink:
    """Appends frames to one part of a trace.

    Args:
        out: the open file.
        file_id: 8 bytes, the same in all its frames.
        seq, offset: where to go on in a resumed file.
        sync: "none", "interval" (at most once a second) or "frame".
    """

    def __init__(
        self, out: osfile.OutputFile, file_id: bytes, *, seq: int = 0, offset: int = 0, sync: str = "interval"
    ) -> None:
        self.out = out
        self.file_id = file_id
        self.seq = seq
        self.offset = offset
        self.rows: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()  # all told
        self.error = ""  # why frames wait now
        self.why_dropped = ""  # the first reason that rows were dropped for
        self.unsafe = ""  # what failed of bringing to the disk what is written
        self.dead = ""  # why nothing will ever be written again
        self.stalls = self.sync_errors = self.synced_bytes = 0
        self._unmarked: Counter[str] = Counter()  # dropped and not yet told in a mark
        self._sync = sync
        self._waiting: deque[Waiting] = deque()
        self.waiting_bytes = 0
        self._entries = array("Q")
        self._streams = {"": 0}  # name -> its number in the index
        self._pages: list[int] = []
        self._retry_at = self._synced_at = 0.0
        self._torn = False

    def append(
        self, kind: int, body: bytes, *, stream: str = "", n: int = 0, t: tuple[int, int] = (0, 0), pids: int = 0
    ) -> bool:
        """Writes a frame or lets it wait; False when it had to be dropped.

        Args:
            stream, n, t, pids: what the index says of it; stream of a mark that is no row: its kind.

        Raises:
            OutputError: an output that will never take more (a pipe whose reader is gone).
        """
        if self.dead:
            raise OutputError(self.dead)
        essential = kind not in (EVENTS, SNAPSHOT) or stream == PROCESS.name or stream in TABLES
        room = QUEUE_BYTES * (ESSENTIAL_ROOM if essential else 1)
        if self._waiting and self.waiting_bytes + len(body) > room:
            self.drain()
            if self._waiting and self.waiting_bytes + len(body) > room:
                self.drop(stream, n)
                return False
        self._waiting.append(Waiting(kind, body, stream, n, *t, pids))
        self.waiting_bytes += len(body)
        self.drain()
        return True

    @property
    def full(self) -> bool:
        """Nothing more fits: encoding it is not worth the time."""
        return self.waiting_bytes > QUEUE_BYTES and time.monotonic() < self._retry_at

    def drop(self, stream: str, n: int, why: str = "") -> None:
        """Counts rows that do not reach the file; why: "" = what the output failed with last."""
        if n:
            self.why_dropped = self.why_dropped or why or self.error
            self.dropped[stream] += n
            self._unmarked[stream] += n

    def drain(self, *, now: bool = False) -> bool:
        """Writes what waits; True when nothing waits any more. While the disk fails it tries once a second."""
        if self._waiting and (now or time.monotonic() >= self._retry_at):
            while self._waiting and self._write(self._waiting[0]):
                self.waiting_bytes -= len(self._waiting.popleft().body)
            if not self._waiting and self._unmarked:
                told, why = dict(self._unmarked), self.error or self.why_dropped
                self._unmarked.clear()
                self.mark("lost", by="writer", lost=told, why=why)
            if not self._waiting:
                self.error = ""
        return not self._waiting

    def mark(self, kind: str, **fields: Any) -> None:
        """Appends a mark of now."""
        self.append(MARK, packb({"m": kind, "t": now_ns(), **fields}), stream=kind)

    def _write(self, frame: Waiting) -> bool:
        data = memoryview(pack_frame(self.file_id, frame.kind, self.seq, frame.body))
        done = 0
        try:
            if self._torn:
                self.out.cut(self.offset)
                self._torn = False
            while done < len(data):
                done += self.out.write(data[done:])
        except OSError as error:
            self._stall(error, torn=done > 0)
            return False
        if frame.kind not in (INDEX, END):
            stream = self._number(frame.stream)
            self._entries.extend((frame.kind, self.offset, len(data), frame.n, frame.t0, frame.t1, stream, frame.pids))
        self.offset += len(data)
        self.seq += 1
        if frame.n:
            self.rows[frame.stream] += frame.n
        self._sync_if_due()
        if len(self._entries) >= INDEX_ENTRIES * _ENTRY_PARTS:
            self._index_page()
        return True

    def _number(self, stream: str) -> int:
        """The number that a stream has in the index; 0 past a bound, where a reader looks into the frame."""
        if len(self._streams) >= _INDEX_STREAMS:
            return self._streams.get(stream, 0)
        return self._streams.setdefault(stream, len(self._streams))

    def _stall(self, error: OSError, *, torn: bool) -> None:
        self.error = error.strerror or str(error)
        if error.errno not in osfile.PASSING or (torn and not self.out.regular):
            self.dead = f"{self.out.path}: {self.error}"
            raise OutputError(self.dead) from None
        self.stalls += 1
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._torn = self._torn or torn
        if self._torn:
            try:  # now, so that the file never ends in half a frame; again before the next write if this fails
                self.out.cut(self.offset)
                self._torn = False
            except OSError:
                pass

    def _sync_if_due(self) -> None:
        now = time.monotonic()
        if self._sync == "frame" or (self._sync == "interval" and now - self._synced_at >= 1.0):
            self._synced_at = now
            try:
                self.out.sync()
                self.synced_bytes = self.offset
            except OSError as error:
                self.sync_errors += 1
                # the next fsync() says nothing of the pages that this one could not write: fsync(2)
                self.unsafe = self.unsafe or f"fsync failed: {error.strerror or error}"

    def _index_page(self) -> None:
        entries = np.array(self._entries, "<u8").reshape(-1, _ENTRY_PARTS)
        page = IndexPage(entries[:, :6], list(self._streams)[1:], entries[:, 6], entries[:, 7])
        del self._entries[:]
        at = self.offset
        if len(entries) and self._write(Waiting(INDEX, pack_index(page), "", 0)):
            self._pages.append(at)

    def restore(self, entries: list[tuple[Any, ...]], pages: list[int], rows: dict[str, int]) -> None:
        """What a resumed file holds already: its rows, its index pages, and for frames that no page has what one tells.

        Args:
            entries: (kind, offset, frame_len, n, t0, t1, stream, pid_set) of each.
        """
        for *entry, stream, pids in entries:
            self._entries.extend((*entry, self._number(stream), pids))
        self._pages = list(pages)
        self.rows.update(rows)

    def settle(self) -> None:
        """Before the end: writes what waits, and drops what does not fit, with a mark that says so."""
        if not self.drain(now=True):
            for frame in self._waiting:  # those that wait are lost now; smaller ones may still fit
                self.drop(frame.stream, frame.n)
            self._waiting.clear()
            self.waiting_bytes = 0
            lost = dict(self._unmarked)
            self._unmarked.clear()
            self.mark("lost", by="writer", lost=lost, why=self.error)
            self.drain(now=True)

    def end(self, ledger: dict[str, int]) -> None:
        """INDEX and END, then the file and its directory to the disk.

        Raises:
            OutputError: they do not fit, and the file stands as far as its last whole frame; or it is whole, and the
                system does not say that it is on the disk.
        """
        self.settle()
        self._index_page()
        end = {"index": self._pages, "frames": self.seq + 1, "rows": dict(self.rows), "ledger": ledger, "clean": True}
        body = packb(end)
        if len(body) > END_BYTES - HEAD_BYTES:
            self.mark("ledger", ledger=ledger)
            self._index_page()
            body = packb({**end, "index": self._pages, "frames": self.seq + 1, "ledger": {}})
        written = not self._waiting and self._write(Waiting(END, body, "", 0))
        unsafe = self.out.finish()
        self.unsafe = self.unsafe or unsafe
        if not written:
            lost = sum(self.dropped.values())
            raise OutputError(
                f"{self.out.path}: {self.error}: the trace is cut, "
                + (f"{lost:,} records are not in it" if lost else "its end is missing"),
                f"what is there can be read; `wstrace recover {self.out.path} -o OUT` ends it cleanly",
            )
        if self.unsafe:
            raise OutputError(
                f"{self.out.path} may not survive a power failure: {self.unsafe}",
                "copy it to another disk",
            )
