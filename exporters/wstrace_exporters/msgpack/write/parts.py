"""The parts of a trace on the disk: when the next one begins, and which old ones are removed."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from wstrace.errors import OutputError
from wstrace.output_file import remove
from wstrace.schema import TABLES
from wstrace_exporters.msgpack.format import frames, osfile
from wstrace_exporters.msgpack.format.layout import FILE_ID_BYTES, HEADER, SESSION_BYTES, VERSION
from wstrace_exporters.msgpack.format.part_names import is_trace, name_and_number, numbered, part_path
from wstrace_exporters.msgpack.read.discover import id_of, parts_of
from wstrace_exporters.msgpack.write.frame_file import Sink


class Ended(NamedTuple):
    """A part that has ended: when, in seconds of time.monotonic(), its bytes, and its rows by stream."""

    at: float
    n_bytes: int
    rows: Counter[str]


class Parts:
    """The part being written, and those before it. create() opens the first part, resume() goes on behind an old trace.

    Args:
        path: the path of part 0; "-" is standard output.
        command: the traced command, for the header.
        force: whether existing parts may be overwritten.
        rotate_bytes, rotate_seconds: the size and age at which a new part begins; 0 = never.
        keep: how many of the newest parts remain on the disk; 0 = all.
        keep_seconds: for how long a part remains after it has ended; 0 = for ever.
        keep_bytes: the size of all parts that remain, but for the one that is being written; 0 = no limit.
        sync: see Sink.
        ring: whether these are the parts of a ring, which the recorder removes by and by.
        after: the number of the first part and the file id of the one before it, where it is not the first.
        session: what the file ids of all parts of a session begin with, 5 bytes; b"" = a new one.
        ledger: gives what was counted in a part that is followed by another one, when it ends.
        finished: called with the path of each part that has ended, and its number of rows that no other part has.
    """

    def __init__(
        self,
        path: str,
        *,
        command: Sequence[str] = (),
        force: bool = False,
        rotate_bytes: int = 0,
        rotate_seconds: float = 0.0,
        keep: int = 0,
        keep_seconds: float = 0.0,
        keep_bytes: int = 0,
        sync: str = "interval",
        ring: bool = False,
        after: tuple[int, bytes | None] = (0, None),
        session: bytes = b"",
        ledger: Callable[[], dict[str, int]] = dict,
        finished: Callable[[str, int], None] | None = None,
    ) -> None:
        self.path = path
        self.number, self._prev = after
        self._ledger = ledger
        self.session = session or os.urandom(SESSION_BYTES)
        self._command = list(command)
        self._ring = os.path.basename(path) if ring else ""
        self.like: frames.Header | None = None
        self._force = force
        self._rotate_bytes, self._seconds, self._keep, self.sync = rotate_bytes, rotate_seconds, keep, sync
        self._finished = finished
        self._dropped: Counter[str] = Counter()
        self._why_dropped = ""
        self._rows: Counter[str] = Counter()  # in earlier parts
        self._finished_bytes = 0
        self._retry_at = 0.0
        self.refused = ""  # why the next part cannot be opened now
        self.written: list[str] = []
        self._keep_seconds, self._keep_bytes = keep_seconds, keep_bytes
        self._ended: dict[str, Ended] = {}  # by path
        self.let_go: Counter[str] = Counter()  # rows of parts that do not remain on the disk, by stream

    def exist(self) -> bool:
        """Whether a trace with this path exists."""
        return self.path != "-" and (is_trace(self.path) or bool(numbered(self.path)))

    def create(self) -> None:
        """Opens the first part of a new trace. Raises OutputError."""
        old = numbered(self.path) if self.path != "-" else []
        if old and not self._force:
            raise OutputError(f"{old[0][1]} exists", "choose another name, or overwrite all parts with -f (force=true)")
        out = osfile.OutputFile(self.path, force=self._force)
        for _, part in old:
            remove(part)
        self._use(out)

    def resume(self) -> None:
        """Begins a part behind those of an earlier session, which stay as they are.

        Raises:
            OutputError: another process is writing the trace, or the part cannot be opened.
            TraceFileError: the last part is no trace, or of another version.
        """
        self.written = parts_of(self.path)
        last = self.written[-1]
        if osfile.is_being_written(last):
            raise OutputError(f"{last} is being written by another wstrace", "choose another name")
        self.number = name_and_number(last)[1]
        self.begin_next(id_of(last))

    def begin(self, like: frames.Header | None = None) -> None:
        """Writes the header of the first part, unless the file is resumed.

        Args:
            like: the header of another trace whose clock, host and command to keep (recover, merge, replay), or None.
        """
        self.like = like
        if not self.written:
            self.written.append(self.path)
            self.sink.append(HEADER, self.header(self._prev).pack())

    def begin_next(self, prev: bytes | None) -> None:
        """Opens the next part and writes its header. Raises OutputError when its file cannot be opened.

        Args:
            prev: the file id of the part before.
        """
        out = osfile.OutputFile(part_path(self.path, self.number + 1), force=self._force)
        self.number += 1
        self._use(out)
        self.written.append(out.path)
        self.sink.append(HEADER, self.header(prev).pack())

    def _use(self, out: osfile.OutputFile) -> None:
        """Makes a new file the one that frames go to from now on."""
        tail = self.number % (1 << 8 * (FILE_ID_BYTES - SESSION_BYTES))
        self.sink = Sink(out, self.session + tail.to_bytes(FILE_ID_BYTES - SESSION_BYTES, "big"), sync=self.sync)
        self._began = time.monotonic()

    def header(self, prev: bytes | None) -> frames.Header:
        """The header of this part; `prev` is the file id of the part before, or None."""
        from wstrace import __version__

        if self.like is not None:
            return replace(
                self.like, version=VERSION, need=[], id=self.sink.file_id, part=self.number, prev=prev,
                writer=f"wstrace {__version__}",
            )  # fmt: skip
        clocks = osfile.clocks()
        return frames.Header(
            id=self.sink.file_id,
            part=self.number,
            prev=prev,
            created_ns=clocks["realtime"],
            boot_id=osfile.boot_id(),
            clock={"name": osfile.CLOCK_NAME, "realtime_offset_ns": clocks["realtime"] - clocks["monotonic"]},
            page_size=osfile.page_size(),
            host=dict(osfile.host()),
            writer=f"wstrace {__version__}",
            command=self._command,
            ring=self._ring,
        )

    def due(self, full: bool = False) -> bool:
        """Whether the next part is to begin: by size, by age, or because a table is `full` for readers."""
        sink = self.sink
        if not sink.out.regular or sink.waiting_bytes or time.monotonic() < self._retry_at:
            return False
        return (
            full
            or 0 < self._rotate_bytes <= sink.offset
            or (self._seconds > 0 and time.monotonic() - self._began >= self._seconds)
        )

    def next(self, *, let_go: bool = True) -> bool:
        """Begins the next part and ends this one; returns False, and keeps this one, when no file can be opened.

        Args:
            let_go: whether what is outdated by then is removed; else that waits for the next part.
        """
        old = self.sink
        try:
            self.begin_next(old.file_id)
        except OutputError as error:
            self._retry_at = time.monotonic() + 10.0
            if error.why != self.refused:
                self.refused = error.why
                self.sink.mark("rotation", why=error.why)
            return False
        self.refused = ""
        with contextlib.suppress(OutputError):  # without its end it reads as cut, but its rows can be read
            old.end(self._ledger())
        self.sink.unsafe = old.unsafe  # reported when the last part ends
        self._dropped.update(old.dropped)
        self._why_dropped = self._why_dropped or old.why_dropped
        self._rows.update(old.rows)
        self._finished_bytes += old.offset
        self._tell(old)
        self._ended[old.out.path] = Ended(time.monotonic(), old.offset, Counter(old.rows))
        while let_go and self._outdated():
            self._let_oldest_go()
        return True

    def _let_oldest_go(self) -> None:
        path = self.written.pop(0)
        remove(path)
        if path in self._ended:
            self.let_go.update(self._ended.pop(path).rows)

    def _outdated(self) -> bool:
        """Whether the oldest part is not to remain on the disk."""
        if self._keep and len(self.written) > self._keep:
            return True
        oldest = self._ended.get(self.written[0])
        if oldest is None:
            return False
        late = 0 < self._keep_seconds < time.monotonic() - oldest.at
        return late or 0 < self._keep_bytes < sum(part.n_bytes for part in self._ended.values())

    def discard(self) -> None:
        """Closes the part being written, and removes all parts that are on the disk."""
        with contextlib.suppress(OSError):
            self.sink.out.close()
        for path in self.written:
            with contextlib.suppress(OSError):
                remove(path)

    def end(self, ledger: dict[str, int]) -> None:
        """Ends the last part. Raises OutputError when that fails, or when the next part could not be opened."""
        try:
            self.sink.end(ledger)
        finally:
            self._tell(self.sink)
        if self.refused:
            raise OutputError(
                f"no next part was begun: {self.refused}; the records since then are in {self.sink.out.path}",
                "clear the way, or write to a folder that nobody else can write to",
            )

    def _tell(self, sink: Sink) -> None:
        if self._finished is not None:
            self._finished(sink.out.path, sum(n for name, n in sink.rows.items() if name not in ("mapping", *TABLES)))

    def dropped(self) -> Counter[str]:
        """Rows that were dropped, by stream."""
        return self._dropped + self.sink.dropped

    def why_dropped(self) -> str:
        """Why rows were dropped first; "" when none were."""
        return self._why_dropped or self.sink.why_dropped

    def rows(self, stream: str) -> int:
        """The number of rows of a stream that this writer has written, in all parts."""
        return self._rows[stream] + self.sink.rows[stream]

    def bytes(self) -> int:
        """The size of all parts in bytes."""
        return self._finished_bytes + self.sink.offset
