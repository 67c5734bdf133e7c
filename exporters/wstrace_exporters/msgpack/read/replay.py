"""The source `replay`: delivers the records of a trace file, at full speed or at the speed of the recording."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.errors import UsageError
from wstrace.interfaces import Context, Source
from wstrace.schema import MAPPING, MARK, PAGE_FAULT, PROCESS, RESIDENT_PAGES, WRITTEN_PAGES, Schema
from wstrace_exporters.msgpack.format.layout import FRAME_ROWS

if TYPE_CHECKING:  # every session imports this module, but few read a file: this saves 10 ms
    from wstrace_exporters.msgpack.read.trace import TraceFile

#: The most rows of one drain().
_DRAIN_ROWS = 1 << 18

#: A later time of a window is this one.
_LATEST = 1 << 63
#: Stages of the ledger that count records outside of a replayed window too.
_OF_ALL_RECORDS = frozenset({"recorded", "counted", "unaccounted", "unresolved"})


class Replay(Source):
    """A source of the records of a trace file, with the file's ledger and description.

    Args:
        path: the file, or several separated by commas.
        speed: 1.0 = the speed of the recording, 2.0 = twice that; 0 = as fast as the file can be read.
        start, end: seconds from the trace's beginning; only records between them are delivered.

    Raises:
        UsageError: `speed` is negative.
    """

    name: ClassVar[str] = "replay"
    patient: ClassVar[bool] = True
    streams: ClassVar[tuple[Schema, ...]] = (MAPPING, PROCESS, PAGE_FAULT, RESIDENT_PAGES, WRITTEN_PAGES, MARK)

    def __init__(
        self,
        *,
        path: list[str],
        speed: float = 0.0,
        start: float | None = None,
        end: float | None = None,
    ) -> None:
        if speed < 0:
            raise UsageError(f"replay:speed={speed} is less than 0")
        self._paths = [path] if isinstance(path, str) else list(path)
        self._speed = speed
        self._window = (start, end)
        self._trace: TraceFile | None = None
        self._latest_ns = self._bad = 0  # bad: frames without the columns that their stream always has
        self._finished = False
        self._waiting: Batch | None = None
        self._begun: tuple[int, int] | None = None

    def open(self, context: Context) -> None:
        """Opens the file, whose description becomes that of the session. Raises TraceFileError."""
        from wstrace.table import Selection
        from wstrace_exporters.msgpack.read.trace import open_trace

        self._context = context
        self._trace = trace = open_trace(self._paths, strings=context.strings)
        begin, (start, end) = trace.begin_ns, self._window
        first, last = (None if at is None else min(max(begin + int(at * 1e9), 0), _LATEST) for at in (start, end))
        self._inside, self._until = Selection(None, None, first), Selection(None, None, None, last)
        context.info.become(trace.info)
        self._batches = self._given(trace)

    def start(self, context: Context) -> None:
        """Does nothing: the file is open."""

    def cancel(self) -> None:
        """Closes the file."""
        if self._trace is not None:
            self._trace.close()

    def _given(self, trace: TraceFile) -> Iterator[Batch]:
        for batch in trace.read(self._until):
            found: Batch | None = batch
            if self._inside.start is not None and not batch.schema.essential:
                found = self._inside.of(batch)
            if found is None:
                continue
            if not found.schema.always <= set(found):
                self._bad += 1
            elif len(found) <= FRAME_ROWS or found.schema.snapshot:
                yield found
            else:  # another writer's frame may have a million rows
                yield Batch(found.schema, {}, window=found.window, lost=found.lost, strings=found.strings)
                yield from (found.take(slice(at, at + FRAME_ROWS)) for at in range(0, len(found), FRAME_ROWS))

    def drain(self, timeout: float) -> Iterable[Batch]:
        """The next records, at most about _DRAIN_ROWS, or none when they are not due within `timeout` seconds."""
        until = now_ns() / 1e9 + timeout
        rows = 0
        while rows < _DRAIN_ROWS and not self._finished:
            batch = next(self._batches, None) if self._waiting is None else self._waiting
            if batch is None:
                self._finished = True
                return
            self._waiting = batch
            if not self._due(batch, until):
                return
            self._waiting = None
            rows += len(batch)
            if batch.schema is not MAPPING:
                self._latest_ns = max(self._latest_ns, batch.window[1])
            yield batch

    def _due(self, batch: Batch, until: float) -> bool:
        """Waits until the batch is due, at most until the time `until` in seconds; returns whether it is due."""
        if not self._speed or batch.schema is MAPPING:
            return True
        now = now_ns()
        if self._begun is None:
            self._begun = (now, batch.window[0])
        at = self._begun[0] + (batch.window[1] - self._begun[1]) / self._speed
        wait = min(at / 1e9, until) - now / 1e9
        if wait > 0:
            time.sleep(wait)
        return now_ns() >= at

    def stop(self) -> Iterable[Batch]:
        """Copies the file's ledger into the session's, closes the file, and returns no records."""
        ledger, info = self._context.ledger, self._context.info
        if self._trace is not None:
            whole = self._window == (None, None)
            for stage, who, n in self._trace.ledger.rows():
                if whole or stage not in _OF_ALL_RECORDS:
                    ledger.set(stage, n, who)
            ledger.add("file_bad_frames", self._bad)
            if not whole:
                start, end = self._window
                until = "on" if end is None else f"to {end:g} s"
                info.note(f"records outside of the window that is replayed: from {start or 0:g} s {until}")
            self._trace.close()
            self._trace = None
        info.ended_ns = info.ended_ns or self._latest_ns  # a cut trace ends with its last record
        return ()

    @property
    def finished(self) -> bool:
        """Whether all records were delivered."""
        return self._finished
