"""Appends frames to a file, each whole or not at all, and the index of what was written.

When the disk is full or fails, the file is truncated to the end of its last whole frame, and the frame is dropped. A
frame gets its sequence number when it is written, so a dropped one leaves no gap; a mark `lost` counts its rows.
"""

from __future__ import annotations

import contextlib
import errno
import time
from array import array
from collections import Counter
from typing import Any

import numpy as np

from wstrace.clock import now_ns
from wstrace.errors import OutputError
from wstrace_exporters.msgpack.format import osfile
from wstrace_exporters.msgpack.format.index import IndexPage, pack_index
from wstrace_exporters.msgpack.format.layout import (
    END,
    END_BYTES,
    HEAD_BYTES,
    INDEX,
    INDEX_ENTRIES,
    MARK,
    pack_frame,
)
from wstrace_exporters.msgpack.format.values import packb

#: The number of values of an index entry: kind, offset, length, n, t0, t1, stream, pids.
_ENTRY_PARTS = 8
_INDEX_STREAMS = 4096
#: How often a frame is tried: a single error of a disk costs nothing.
_TRIES = 3


class Sink:
    """Appends frames to one part of a trace.

    Args:
        out: the open file.
        file_id: the 8 bytes that identify the file in each of its frames.
        sync: when to call fsync(): "none" (only at the end), "interval" (at most once a second) or "frame"; "never".
    """

    def __init__(self, out: osfile.OutputFile, file_id: bytes, *, sync: str = "interval") -> None:
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

        Args:
            kind, body: the frame.
            stream, n, t, pids: its stream, rows, times and set of processes in the index; for a mark that is no row,
                `stream` is the kind of the mark.

        Raises:
            OutputError: the output can take no more, as a pipe without a reader.
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
            and self._write(MARK, packb({"m": "lost", "t": now_ns(), "by": "writer", **lost}), "lost")
        ):
            self._unmarked.clear()

    def mark(self, kind: str, **fields: Any) -> bool:
        """Appends a mark with the present time."""
        return self.append(MARK, packb({"m": kind, "t": now_ns(), **fields}), stream=kind)

    def _write(
        self, kind: int, body: bytes, stream: str = "", n: int = 0, t: tuple[int, int] = (0, 0), pids: int = 0
    ) -> bool:
        data = memoryview(pack_frame(self.file_id, kind, self.seq, body))
        if not any(self._tried(data) for _ in range(_TRIES)):
            return False
        if kind not in (INDEX, END):
            self._entries.extend((kind, self.offset, len(data), n, *t, self._number(stream), pids))
        self.error = ""
        self.offset += len(data)
        self.seq += 1
        if n:
            self.rows[stream] += n
        self._sync_if_due()
        if len(self._entries) >= INDEX_ENTRIES * _ENTRY_PARTS:
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
        if len(entries) and self._write(INDEX, pack_index(page)):
            self._pages.append(at)

    def end(self, ledger: dict[str, int]) -> None:
        """Writes INDEX and END, then syncs the file and its directory, but for sync="never".

        Raises:
            OutputError: the end cannot be written, and the file ends with its last whole frame; or the file is
                complete, but the system does not confirm that it is on the disk.
        """
        self.settle()
        self._index_page()
        end = {"index": self._pages, "frames": self.seq + 1, "rows": dict(self.rows), "ledger": ledger, "clean": True}
        body = packb(end)
        if len(body) > END_BYTES - HEAD_BYTES:
            self.mark("ledger", ledger=ledger)
            self._index_page()
            body = packb({**end, "index": self._pages, "frames": self.seq + 1, "ledger": {}})
        written = self._write(END, body)
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
                f"{self.out.path} may not survive a power failure: {self.unsafe}",
                "copy it to another disk",
            )
