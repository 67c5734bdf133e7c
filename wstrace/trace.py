"""Trace: one type for the records of a session or a file, as batches, tables, counts and files of other formats."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from wstrace.ledger import Ledger
from wstrace.schema import CALL_SITE, PAGE_FAULT, PROCESS, STACK_COLUMNS
from wstrace.table import Records, Selection
from wstrace.trace_info import TraceInfo

if TYPE_CHECKING:
    from wstrace.analysis.blame.comparison import Comparison
    from wstrace.analysis.blame.rows import Blame
    from wstrace.analysis.stacks import StackCounts
    from wstrace.analysis.summary import Summary


class Trace(Records):
    """The records of a session (`session.trace`) or of a file (`wstrace.open_trace`). It is a context manager."""

    @property
    @abc.abstractmethod
    def state(self) -> str:
        """`clean`, `incomplete`, `cut` (its end is missing) or `damaged` for a file; a session has its own states."""

    @property
    @abc.abstractmethod
    def ledger(self) -> Ledger:
        """The counts of what was recorded, and of what was lost at which stage."""

    @property
    @abc.abstractmethod
    def info(self) -> TraceInfo:
        """A description of the trace: what was traced, how, where and when."""

    @property
    @abc.abstractmethod
    def begin_ns(self) -> int:
        """The time at which the trace began, in ns on the records' clock."""

    def summary(self) -> Summary:
        """The counts by file, module, thread and process."""
        from wstrace.analysis.summary import Summary

        counted = Summary()
        for batch in self.read(Selection()):
            counted.add(batch)
        return counted

    def stacks(self) -> StackCounts:
        """The counts of faults by stack: `trace.stacks().table("line")` has the rows of `report --by line`."""
        from wstrace.analysis.stacks import StackCounts

        counted = StackCounts()
        for batch in (*self.batches(CALL_SITE.name), *self.batches(PROCESS.name)):
            counted.add(batch)
        for batch in self.batches(PAGE_FAULT.name, ("time_ns", "pid", "host", "flags", *STACK_COLUMNS)):
            counted.add(batch)
        return counted

    def blame(self, at: str | int = "exit", pids: Sequence[int] = (), kinds: Sequence[str] = ()) -> Blame:
        """The resident pages at a moment by who brought them: `trace.blame().rows("line")` has sizes in bytes.

        Args:
            at: `exit` = the last snapshot of each process, `peak` = the largest, `start` = the first, the text of a
                mark, or a time in ns on the records' clock.
            pids: the processes whose pages are counted; () = all.
            kinds: the kinds of memory that are counted: `anon`, `heap`, `stack`, `file`, `shared` ...; () = all.

        Raises:
            UsageError: there is no such mark or no snapshot, or no such kind.
        """
        from wstrace.analysis.blame.composition import Composition
        from wstrace.analysis.blame.rows import Blame

        return Blame(Composition(self, at, pids), kinds)

    def diff(self, other: Trace, at: str | int | None = None) -> Comparison:
        """What another run has more in memory than this one: `a.diff(b).rows("package")` has sizes in bytes.

        Args:
            other: the trace of the second run.
            at: the moment, as of blame(); None = the peak if both traces recorded it (`-s peak_snapshot`), else
                the last snapshot of each process.

        Raises:
            TraceFileError: a trace has no whole snapshot of resident pages.
            UsageError: there is no such mark.
        """
        from wstrace.analysis.blame.comparison import Comparison

        return Comparison(self, other, at)

    def save(
        self,
        path: str,
        *,
        force: bool = False,
        stream: str | None = None,
        columns: Sequence[str] | None = None,
        start: int | None = None,
        end: int | None = None,
        **options: object,
    ) -> int:
        """Writes the trace to a file; the suffix of the path (`.parquet`, `.csv`, ...) selects the format.

        Args:
            path: the file, which appears only once it is complete.
            force: whether to overwrite an existing file.
            stream: the stream to write, if the format takes rows; None = `page_fault`.
            columns: as in batches(), if the format takes rows.
            start: as in batches(), if the format takes rows.
            end: as in batches(), if the format takes rows.
            options: the format's own options.

        Returns:
            The number of rows that were written.

        Raises:
            UsageError: no format has this suffix, or the format has no such option.
            OutputError: the file exists, or cannot be written.
        """
        from wstrace.formats import save

        selection = Selection(stream, None if columns is None else tuple(columns), start, end)
        return save(self, path, selection, options, force=force)

    def close(self) -> None:
        """Closes the file that it reads from, if any."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self.state  # before the rows, because determining the state of a file finds missing ones
        rows = ", ".join(f"{n:,} {stream}" for stream, n in sorted(self.rows.items())) or "no rows"
        return f"<{type(self).__name__} {self.name}: {state}; {rows}; {self._lost()}>"

    def _lost(self) -> str:
        """The number of lost records, in words."""
        return f"{sum(n for _, _, n in self.ledger.losses()):,} lost"
