"""The source `replay`: delivers the records of a trace file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from wstrace.batch import Batch
from wstrace.interfaces import Context, Source
from wstrace.schema import MAPPING, MARK, PAGE_FAULT, PROCESS, RESIDENT_PAGES, WRITTEN_PAGES

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
        start, end: seconds from the trace's beginning; only records between them are delivered.
    """

    name = "replay"
    patient = True
    streams = (MAPPING, PROCESS, PAGE_FAULT, RESIDENT_PAGES, WRITTEN_PAGES, MARK)

    def __init__(self, *, path: list[str], start: float | None = None, end: float | None = None) -> None:
        self._paths = [path] if isinstance(path, str) else list(path)
        self._window = (start, end)
        self._trace: TraceFile | None = None
        self._latest_ns = self._bad = 0  # bad: frames without the columns that their stream always has
        self._finished = False

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
            else:
                yield found

    def drain(self, timeout: float) -> Iterable[Batch]:
        """The next records, at most about _DRAIN_ROWS."""
        rows = 0
        while rows < _DRAIN_ROWS and not self._finished:
            batch = next(self._batches, None)
            if batch is None:
                self._finished = True
                return
            rows += len(batch)
            if batch.schema is not MAPPING:
                self._latest_ns = max(self._latest_ns, batch.window[1])
            yield batch

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
