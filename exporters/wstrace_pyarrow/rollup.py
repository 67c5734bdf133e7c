"""The exporter `rollup`: sums by second while a trace runs, as Parquet in the folders of a fleet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.errors import UsageError
from wstrace.interfaces import Context, Exporter
from wstrace.output_file import refuse_url

if TYPE_CHECKING:  # every session imports this module
    from wstrace.analysis.rollup import Rollup

#: Faults reach an exporter some time after they happened; those that come later still count, in a row of their own.
_LATE_NS = 5_000_000_000


class RollupExporter(Exporter):
    """Writes sums by second, container, process, file and function: the columns of `wstrace convert --rollup`.

    A file appears each `every` seconds, in `path/date=.../host=.../`. What was counted since the last one is lost if
    the tracer is killed. Functions are those of instructions, or of Python frames where these are recorded.

    Args:
        path: the folder of all rollups.
        seconds: the length of an interval, a part of a day.
        limit: the keys of an interval; all others add up as `(others)`.
        every: seconds between two files.

    Raises:
        UsageError: an option is out of range.
        OutputError: the path is a URL.
    """

    name: ClassVar[str] = "rollup"
    streams: ClassVar[frozenset[str] | None] = frozenset({"page_fault", "process", "mapping", "call_site", "resident"})

    def __init__(self, *, path: str, seconds: float = 1.0, limit: int = 1000, every: float = 300.0) -> None:
        if limit < 1 or every < 1:
            raise UsageError("rollup: limit and every are 1 or more")
        refuse_url(path)
        self._path, self._seconds, self._limit, self._every = path, seconds, limit, every
        self._context = Context()
        self._rollup: Rollup | None = None
        self._name, self._files, self._rows = "", 0, 0
        self._written = 0.0

    def start(self, context: Context) -> None:
        """Begins to count. Raises Unavailable without pyarrow, UsageError for an interval that is none."""
        from wstrace.analysis.rollup import Rollup, whole_seconds
        from wstrace.analysis.symbols import Symbolizer
        from wstrace.rollup_files import name_of
        from wstrace_pyarrow.writer import pyarrow

        pyarrow()  # it is told now, not after the trace
        info, seconds = context.info, whole_seconds(self._seconds)
        self._context, self._written = context, time.monotonic()
        self._rollup = Rollup(info, Symbolizer(context), seconds=seconds, limit=self._limit)
        self._name = name_of(info.boot_id, info.created_ns or info.clock.wall(now_ns()))

    def export(self, batch: Batch) -> None:
        """Counts a batch."""
        if self._rollup is not None:
            self._rollup.add(batch)

    def tick(self) -> None:
        """Writes the intervals that have ended, when it is time."""
        if time.monotonic() - self._written >= self._every and not self._context.info.recorded:
            self._write(now_ns() - _LATE_NS)

    def close(self) -> None:
        """Writes the rest, with the losses that no batch told of."""
        if self._rollup is None:
            return
        info, ledger = self._context.info, self._context.ledger
        known = sum(n for _, _, n in ledger.losses())
        if known > self._rollup.lost:
            self._rollup.lose(info.ended_ns or now_ns(), known - self._rollup.lost)
        self._write(None)

    def statistics(self) -> dict[str, int | float]:
        """Rows and files that were written."""
        return {"rows": self._rows, "files": self._files}

    def _write(self, before_ns: int | None) -> None:
        from wstrace.rollup_files import write_rollup

        if self._rollup is not None:
            self._written = time.monotonic()
            rows = self._rollup.take(before_ns)
            self._rows += len(rows)
            self._files += len(write_rollup(rows, self._path, f"{self._name}-{self._files:05d}"))
