"""`report --by process,line`: faults, and the bytes that they brought, by two keys together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from wstrace.analysis import headline
from wstrace.analysis.blame.composition import Composition
from wstrace.analysis.blame.rows import Blame, BlameRow
from wstrace.analysis.filter import Filter
from wstrace.analysis.proposals import groups
from wstrace.analysis.sampled import estimates
from wstrace.analysis.summary import Summary
from wstrace.analysis.tally import NO_SAMPLE, first_rows
from wstrace.batch import Batch
from wstrace.schema import PAGE_FAULT
from wstrace.table import Selection
from wstrace.terminal.bar import Bar
from wstrace.terminal.table import Cell, Column, Styled, TextTable, rows_to_show
from wstrace.text import number, size
from wstrace.trace import Trace
from wstrace_exporters.console.blame_tables import TITLES

#: What the filter needs of a fault, beside what blame does.
_FILTERED = ("time_ns", "pid", "tid", "flags", "file", "kind")


class TwoKeys:
    """The faults of a trace that pass a filter, by two views of blame together.

    Args:
        trace: the trace. filter: which faults and pages count. views: as Blame.rows() takes them.
        sort: resident, faults or major; "" = resident where the pages of all processes are known, else faults.
    """

    def __init__(self, trace: Trace, filter: Filter, views: Sequence[str], sort: str = "") -> None:  # noqa: A002
        self.trace, self.filter, self.views = trace, filter, views
        filter.origin_ns = trace.info.started_ns
        told = Blame(Composition(_Chosen(trace, filter), whole_stacks="thread" in views))
        held = np.unique(told.of.inputs.runs["space"])
        # a fault that is left out may be the one that brought a page
        whole = not (filter.hard or filter.soft or filter.tids or filter.start or filter.end)
        self.resident = whole and bool(np.isin(told.of.inputs.faults["space"], held).all()) and told.total > 0
        self.sort = sort or ("resident" if self.resident else "faults")
        self.rows = [row for row in told.rows(*views, sort=self.sort) if row.faults or (self.resident and row.resident)]
        self.sampled = any(row.in_all != row.faults for row in self.rows)
        self._counted: tuple[Summary, int] | None = None
        if self.sampled:
            summary, seen = self._summary()
            of = estimates(summary, trace.info, trace.ledger, seen)
            if of is not None and (rest := of.total - sum(row.in_all for row in self.rows)) > 0:
                self.rows.append(BlameRow(NO_SAMPLE, NO_SAMPLE, in_all=rest))
            self.rows.sort(key=lambda row: (row.label == NO_SAMPLE, -self.figures(row)[self.sort]))

    def figures(self, row: BlameRow) -> dict[str, int]:
        """Those of a row: faults, major, and resident bytes where they are known; of a sampled trace also samples."""
        found = {"faults": row.faults, "major": row.major}
        if self.sampled:  # as Estimates.rows() does
            major = round(row.in_all * row.major / max(row.faults, 1))
            found = {"faults": row.in_all, "samples": row.faults, "major": major}
        return {"resident": row.resident, **found} if self.resident else found

    def total(self) -> dict[str, int]:
        """The sums of all rows."""
        parts = [self.figures(row) for row in self.rows] or [self.figures(BlameRow("", ""))]
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def parts(self, top: int) -> list[str | Styled | TextTable]:
        """The lines and the table to show."""
        trace, (summary, seen) = self.trace, self._summary()
        lines = [Styled(headline.answer(summary, trace.info, self.filter, seen, ledger=trace.ledger), "bold"),
                 Styled(headline.completeness(summary, trace.info, trace.ledger, seen), "dim")]  # fmt: skip
        if why := headline.nothing(summary, self.filter, seen, trace.info):
            return [*lines, "", why]
        lines += [Styled(line, "dim") for line in groups(self.views, summary.cgroups_known)]
        return [*lines, "", self._table(top)]

    def _summary(self) -> tuple[Summary, int]:
        """What passes the filter, and how many faults the trace has; read once."""
        if self._counted is None:
            summary, seen = Summary(), 0
            for batch in self.trace.read(Selection()):
                seen += len(batch) * (batch.schema.name == PAGE_FAULT.name)
                if self.filter.concerns(batch):
                    summary.add(self.filter.apply(batch))
            self._counted = summary, seen
        return self._counted

    def _table(self, top: int) -> TextTable:
        total = self.total()
        shown = [name for name in total if name != "major" or total["major"]]
        most = max((self.figures(row)[self.sort] for row in self.rows), default=0)

        def cells(figures: dict[str, int], label: str, bar: Bar) -> list[Cell]:
            told = [size(figures[name]) if name == "resident" else number(figures[name]) for name in shown]
            return [*told, f"{figures[self.sort] / max(total[self.sort], 1):6.1%}", bar, label]

        rows = [cells(figures := self.figures(row), row.label, Bar(figures[self.sort], most))
                for row in first_rows(self.rows, rows_to_show(len(self.rows), top))]  # fmt: skip
        rest = f" (of {number(len(self.rows))} rows)" if len(self.rows) > len(rows) else ""
        heads = {"resident": "still resident", "faults": "faults", "samples": "samples", "major": "from disk"}
        title = " and ".join(TITLES[view] for view in self.views)
        columns = [*(Column(heads[name]) for name in shown), Column("share"), Column("", "bar"), Column(title, "name")]
        if len(self.rows) > 1:
            rows.append(cells(total, f"Total{rest}", Bar(0, most)))
        return TextTable(columns, rows, len(rows), [0])

    def as_dict(self) -> dict[str, Any]:
        """The table for JSON: all rows, labels whole."""
        rows = [{"label": row.whole, **self.figures(row)} for row in self.rows]
        return {"schema": 1, "by": list(self.views), "filter": str(self.filter), "total": self.total(), "rows": rows}


class _Chosen:
    """A trace of which only those rows are read that pass a filter."""

    def __init__(self, trace: Trace, filter: Filter) -> None:  # noqa: A002
        self._trace, self._filter = trace, filter
        self.strings, self.info, self.ledger = trace.strings, trace.info, trace.ledger

    def batches(self, stream: str, columns: Sequence[str] | None = None) -> Iterator[Batch]:
        """The rows of a stream that pass; they may have more columns than were asked for."""
        if columns is not None and stream == PAGE_FAULT.name:
            columns = tuple(dict.fromkeys((*columns, *_FILTERED)))
        for batch in self._trace.batches(stream, columns):
            if self._filter.concerns(batch):
                yield self._filter.apply(batch)
