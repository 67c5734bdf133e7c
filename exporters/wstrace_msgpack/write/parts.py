"""Parts of a trace on the disk: when the next one begins, and which old ones are removed."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from wstrace.errors import OutputError
from wstrace.output_file import remove
from wstrace_msgpack.format import frames, osfile
from wstrace_msgpack.format.layout import FEATURES, HEADER, VERSION
from wstrace_msgpack.format.part_names import is_trace, numbered, part_path
from wstrace_msgpack.write.frame_file import Sink


class Parts:
    """The part being written, and those before it. create() opens the first one; resume.take_up() one that is there.

    Args:
        path: of part 0; "-" is standard output.
        command: what was traced, for the header.
        force: existing parts may be overwritten.
        rotate_bytes, rotate_seconds: a new part at this size or age; 0 = never.
        keep: how many parts stay on the disk, the newest; 0 = all.
        sync: see Sink.
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
        sync: str = "interval",
    ) -> None:
        self.path = path
        self.number = 0
        self.next_string, self.table_rows = 1, 0
        self.bases: dict[str, int] = {}  # semantic -> added to the session's ids: a resumed file has the low ones
        self.shuffle = True  # a file of version 1.0 that is gone on with has a header that does not need it
        self._command = list(command)
        self.like: frames.Header | None = None
        self._force = force
        self._bytes, self._seconds, self._keep, self.sync = rotate_bytes, rotate_seconds, keep, sync
        self._dropped: Counter[str] = Counter()
        self._why_dropped = ""
        self._rows: Counter[str] = Counter()  # in the parts before; of a part taken up, those that it had count less
        self._finished_bytes = 0
        self._retry_at = 0.0
        self.refused = ""  # why the next part cannot be opened now
        self.written: list[str] = []

    def exist(self) -> bool:
        """Whether a trace of that name is there."""
        return self.path != "-" and (is_trace(self.path) or bool(numbered(self.path)))

    def create(self) -> None:
        """Opens the first part of a new trace. Raises OutputError."""
        old = numbered(self.path) if self.path != "-" else []
        if old and not self._force:
            raise OutputError(f"{old[0][1]} exists", "choose another name, or overwrite all parts with -f (force=true)")
        out = osfile.OutputFile(self.path, force=self._force)
        for _, part in old:
            remove(part)
        self.go_on(Sink(out, os.urandom(8), sync=self.sync))

    def begin(self, like: frames.Header | None = None) -> None:
        """The first frame, unless the file is one that was taken up.

        Args:
            like: the header of another trace, whose clock, host and command this one keeps (recover, merge, replay).
        """
        self.like = like
        if not self.written:
            self.written.append(self.path)
            self.sink.append(HEADER, self.header(None).pack())

    def begin_next(self, prev: bytes | None) -> None:
        """The first frame of the next part. Raises OutputError when its file cannot be opened."""
        out = osfile.OutputFile(part_path(self.path, self.number + 1), force=self._force)
        self.number += 1
        self.next_string, self.table_rows, self.shuffle = 1, 0, True
        self.go_on(Sink(out, os.urandom(8), sync=self.sync))
        self.written.append(out.path)
        self.sink.append(HEADER, self.header(prev).pack())

    def go_on(self, sink: Sink) -> None:
        """Frames go to that sink from now on."""
        self.sink = sink
        self._rows.subtract(sink.rows)
        self._began = time.monotonic()

    def header(self, prev: bytes | None) -> frames.Header:
        """What this part says of itself."""
        from importlib.metadata import version

        if self.like is not None:
            return replace(
                self.like, version=VERSION, need=sorted(FEATURES), id=self.sink.file_id, part=self.number, prev=prev,
                writer=f"wstrace {version('wstrace')}", schema={},
            )  # fmt: skip
        clocks = osfile.clocks()
        return frames.Header(
            need=sorted(FEATURES),
            id=self.sink.file_id,
            part=self.number,
            prev=prev,
            created_ns=clocks["realtime"],
            boot_id=osfile.boot_id(),
            clock={"name": osfile.CLOCK_NAME, "realtime_offset_ns": clocks["realtime"] - clocks["monotonic"]},
            page_size=osfile.page_size(),
            host=dict(osfile.host()),
            writer=f"wstrace {version('wstrace')}",
            command=self._command,
        )

    def due(self, full: bool = False) -> bool:
        """Whether the next part is to begin: by size, by age, or because a table is near a reader's limit."""
        sink = self.sink
        if not sink.out.regular or sink.waiting_bytes or time.monotonic() < self._retry_at:
            return False
        return (
            full
            or 0 < self._bytes <= sink.offset
            or (self._seconds > 0 and time.monotonic() - self._began >= self._seconds)
        )

    def next(self) -> bool:
        """Begins the next part and ends this one; False when no new file can be opened now: then this one goes on."""
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
        with contextlib.suppress(OutputError):  # its end did not fit: it reads as cut, its rows are there
            old.end({})
        self.sink.unsafe = old.unsafe  # told when the last part ends
        self._dropped.update(old.dropped)
        self._why_dropped = self._why_dropped or old.why_dropped
        self._rows.update(old.rows)
        self._finished_bytes += old.offset
        while self._keep and len(self.written) > self._keep:
            remove(self.written.pop(0))
        return True

    def end(self, ledger: dict[str, int]) -> None:
        """Ends the last part. Raises OutputError when its end does not fit, or the part after it was refused."""
        self.sink.end(ledger)
        if self.refused:
            raise OutputError(
                f"no next part was begun: {self.refused}; the records since then are in {self.sink.out.path}",
                "clear the way, or write to a folder that nobody else can write to",
            )

    def dropped(self) -> Counter[str]:
        """Rows that did not reach the disk, by stream."""
        return self._dropped + self.sink.dropped

    def why_dropped(self) -> str:
        """The first reason that rows were dropped for; "" when none were."""
        return self._why_dropped or self.sink.why_dropped

    def rows(self, stream: str) -> int:
        """Rows of a stream written by this writer, in all parts."""
        return self._rows[stream] + self.sink.rows[stream]

    def bytes(self) -> int:
        """Bytes written in all parts."""
        return self._finished_bytes + self.sink.offset
