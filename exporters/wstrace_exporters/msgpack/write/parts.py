"""The parts of a trace on the disk: when the next one begins, and which old ones are removed."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from wstrace.clock import now_ns
from wstrace.errors import OutputError
from wstrace.output_file import remove
from wstrace_exporters.msgpack.format import frames, osfile
from wstrace_exporters.msgpack.format.layout import FILE_ID_BYTES, HEADER, SESSION_BYTES, VERSION
from wstrace_exporters.msgpack.format.part_names import name_and_number, part_path, parts_there
from wstrace_exporters.msgpack.read.discover import id_of, parts_of
from wstrace_exporters.msgpack.write.frame_file import Sink

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
        self._session = os.urandom(SESSION_BYTES)
        self._retry_at = 0.0
        self.refused = ""  # why the next part cannot be opened now
        self.before: list[Ended] = []
        self._rows: Counter[str] = Counter()  # in parts before this one
        there = parts_there(path)
        if resume and there:
            self.before = [Ended(part, 0, 0, 0, Counter()) for part in parts_of(path)]
            last = self.before[-1].path
            if osfile.is_being_written(last):
                raise OutputError(f"{last} is being written by another wstrace", "choose another name")
            self._open(name_and_number(last)[1] + 1, id_of(last))
            return
        old = [part for part in there if part != path]
        if old and not force:
            raise OutputError(f"{old[0]} exists", "choose another name, or overwrite all parts with -f (force=true)")
        self._open(0, None)
        for part in old:
            remove(part)

    def _open(self, number: int, prev: bytes | None) -> None:
        """Opens a part and writes its header; `prev` is the file id of the part before. Raises OutputError."""
        out = osfile.OutputFile(part_path(self.path, number), force=self._force)
        tail = number % (1 << 8 * (FILE_ID_BYTES - SESSION_BYTES))
        sink = Sink(out, self._session + tail.to_bytes(FILE_ID_BYTES - SESSION_BYTES, "big"), sync=self._sync)
        if not sink.append(HEADER, self._header(sink.file_id, number, prev).pack()):
            out.close()
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
        return replace(like, version=VERSION, need=[], id=file_id, part=number, prev=prev, writer=writer)

    def due(self, full: bool = False) -> bool:
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
        self.sink.end(ledger)
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
