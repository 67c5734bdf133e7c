"""The stacks of a report: the own line of its first line, the tables, folded stacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from wstrace.analysis.headline import NAME_LIMIT, most_of
from wstrace.analysis.own import OwnRule
from wstrace.analysis.proposals import callers, functions, not_python
from wstrace.analysis.stack_text import distinct, whole
from wstrace.analysis.stack_views import STACK_VIEWS, StackBy
from wstrace.analysis.stacks import StackCounts, StackRow
from wstrace.analysis.symbols import Symbolizer
from wstrace.analysis.tally import NO_SAMPLE, first_rows
from wstrace.batch import Batch
from wstrace.errors import UsageError
from wstrace.terminal.elide import elide
from wstrace.terminal.table import TextTable, rows_to_show
from wstrace.text import number, plural, printable
from wstrace_exporters.console.report_tables import Sort, shares_table

if TYPE_CHECKING:
    from wstrace_exporters.console.json_stacks import Stacks

TITLES = {"line": "own line", "function": "function", "stack": "stack, innermost frame first", "package": "package"}
#: Native code is told by line where debug information has it; system programs have no own frame at all.
_NATIVE_TITLES = {"line": "own line, or innermost frame", "package": "module"}
#: Where there are more samples, no first row is left to chance.
_MANY = 1000
#: what separates the frames of a folded stack, and what stands for it in a name
_FOLD, _UNFOLD = ";", ","


class StackReport:
    """Counts faults by stack, for the tables that are asked for and for the first line.

    Args:
        by: the only table to show; it is one of stacks, or another one.
        own, not_own: files and folders that are, or are not, the program's own.
        callers, callees: the function whose callers, or whose calls, are to be shown; "" = none.
        native: estimate from the sampled native stacks, instead of counting the Python stacks.
        sort: the order of the rows: by faults from disk, else by faults.

    Raises:
        UsageError: callers and callees together, or with another table.
    """

    def __init__(
        self,
        by: str,
        own: Sequence[str],
        not_own: Sequence[str],
        callers: str,
        callees: str,
        *,
        native: bool,
        sort: Sort = "",
    ) -> None:
        if callers and callees:
            raise UsageError("--callers and --callees exclude each other", "ask for one of them")
        if by and (callers or callees):
            raise UsageError(
                f"--by {by} and --{'callers' if callers else 'callees'} exclude each other", "leave one out"
            )
        self.counts = StackCounts()
        self._by, self._rule, self._sort = by, OwnRule(own, not_own), sort
        self._function, self._callers, self._asked_native = callers or callees, bool(callers), native
        self._lines: Stacks | None = None

    def add(self, batch: Batch) -> None:
        """Counts a batch of page faults, or takes one of call sites."""
        self.counts.add(batch)

    @property
    def native(self) -> bool:
        """Whether its tables are estimates from native stacks: asked for, or there are no others."""
        return self._asked_native or (not self.counts.python and self.counts.native > 0)

    @property
    def shows(self) -> bool:
        """Whether the table that was asked for is one of stacks. Without stacks `function` is the instruction's."""
        if self._by == "function":
            return bool(self.counts.python or self._asked_native)
        return bool(self._by in STACK_VIEWS or self._function)

    def rows(self, symbolizer: Symbolizer | None = None) -> list[StackRow]:
        """The rows of the table that was asked for; by own line where none was."""
        if self._function:
            rows = self.counts.around(self._function, self._rule, symbolizer, callers=self._callers, native=self.native)
        else:
            by = cast("StackBy", self._by if self._by in STACK_VIEWS else "line")
            rows = self.counts.table(by, self._rule, symbolizer, native=self.native)
        if self._sort != "major":
            return rows
        return sorted(rows, key=lambda row: (row.label == NO_SAMPLE, -row.major))

    def own_lines(self, symbolizer: Symbolizer | None) -> list[StackRow]:
        """The faults by own line of Python, the most first."""
        return self.counts.table("line", self._rule, symbolizer, native=False)

    @property
    def asked_for(self) -> str:
        """The name of its table: line, function, stack, package, callers or callees."""
        return self._by or (("callers" if self._callers else "callees") if self._function else "line")

    def lines(self, symbolizer: Symbolizer) -> Stacks:
        """What gives the stacks of single faults."""
        if self._lines is None:
            from wstrace.analysis.frames import Frames
            from wstrace_exporters.console.json_stacks import Stacks

            self._lines = Stacks(Frames(self.counts.tree, self._rule, symbolizer))
        return self._lines

    def table(self, top: int, symbolizer: Symbolizer | None = None, *, verbose: bool = False) -> TextTable | str:
        """The table that was asked for, or a sentence with the reason that there is none.

        Args:
            verbose: show all frames of stacks.
        """
        if not self.counts.total:
            return "no fault was recorded, and so no stack"
        if not self.counts.recorded:
            return "no stack was recorded: record with -s page_faults:stacks=python (see wstrace doctor)"
        rows = self.rows(symbolizer)
        if not rows and self._function:
            return f"no stack goes through {printable(self._function, NAME_LIMIT)}: --by function shows the names"
        if self.asked_for == "stack" and not verbose:
            n = rows_to_show(len(rows), top)
            rows = shortened(rows[:n]) + rows[n:]
        return stack_table(self._title(), rows, top, disk=self.counts.major > 0)

    def _title(self) -> str:
        if not self._function:
            by = self._by or "line"
            return _NATIVE_TITLES.get(by, TITLES[by]) if self.native else TITLES[by]
        whose = printable(self._function, NAME_LIMIT)
        return f"caller of {whose}" if self._callers else f"called by {whose}"

    @property
    def known(self) -> bool:
        """Whether any fault has a stack."""
        return bool(self.counts.python or self.counts.native)

    def unsure(self, symbolizer: Symbolizer | None = None) -> str:
        """Why its tables of samples of native stacks are no answer: what these stand for is little, or left to chance.

        Returns:
            The reason, "" = they are. Where its table is of something else, no sample is told.
        """
        counts = self.counts
        if not self.native or not (self.shows or not self._by):
            return ""
        if 2 * counts.stood_for < counts.total:
            told = f"samples of native stacks stand for {number(counts.stood_for)} of {plural(counts.total, 'fault')}"
            return f"{told} (possible reasons: threads that ended soon, lost samples)"
        if counts.native > _MANY or self._sort:
            return ""
        first = next((row for row in self.rows(symbolizer) if row.samples), None)
        if first is None or not first.by_chance:
            return ""
        rests = f"rests on {plural(first.samples, 'sample')} of native stacks"
        return f"the first row, {number(first.total)} +- {number(first.margin)} faults, {rests}"

    def proposed(self, symbolizer: Symbolizer | None = None, *, counted: bool = False) -> list[str]:
        """What tells own lines where no stack does, and callers where the first row is no own line.

        Args:
            counted: whether a table of all faults by function is shown, too.
        """
        if unsure := self.unsure(symbolizer):
            return functions(unsure, counted=counted)
        if self.native and self.asked_for == "line" and 2 * self.counts.python < self.counts.total:
            first = next((row for row in self.rows(symbolizer) if row.frames), None)
            return callers() if first is not None and not first.frames[0].own else []
        return not_python(self.counts.foreign, self.counts.total, native=self.counts.native > 0)

    def answer(self, symbolizer: Symbolizer | None = None) -> tuple[str, bool]:
        """`58 % parse_record leak.py:12`: the own line with most faults, "" = none; and whether it is the answer.

        Where only samples have a stack it is an estimate: `about 58 % parseRecord leak.js` of the faults that these
        stand for, and none where these are less than half of all: the others may be of anything.
        """
        return most_of(self.counts, self._rule, symbolizer, lambda label: elide([label], NAME_LIMIT, unicode=False)[0])

    def folded(self, symbolizer: Symbolizer | None) -> Iterator[str]:
        """Lines `outermost;...;innermost faults`, as flame graphs take them."""
        native = self.native
        for frames, faults in self.counts.folded(symbolizer, native=native):
            names = (printable(frame).replace(_FOLD, _UNFOLD) for frame in frames)
            yield f"{_FOLD.join(names)} {faults}\n"

    def as_dicts(self, top: int | None, symbolizer: Symbolizer | None = None) -> list[dict[str, Any]]:
        """The rows for JSON."""
        return [_as_dict(row) for row in first_rows(self.rows(symbolizer), top)]


def shortened(rows: Sequence[StackRow]) -> list[StackRow]:
    """Rows of stacks with those frames that a person looks for; the marks behind a label stay."""
    texts = distinct([row.frames for row in rows])
    return [
        row._replace(label=text + row.label.removeprefix(whole(row.frames))) if row.frames else row
        for row, text in zip(rows, texts, strict=True)
    ]


def stack_table(title: str, rows: Sequence[StackRow], top: int, *, disk: bool) -> TextTable:
    """Faults, those from disk and the share of each row; of estimates the margin and the samples.

    Args:
        title: what the names are.
        rows: the rows, in order.
        top: the number of rows.
        disk: whether any fault read from disk.
    """
    estimated = any(row.samples for row in rows)
    disk = disk and not estimated
    heads = ["faults", *["from disk"] * disk, *(["+-", "samples"] if estimated else [])]
    shown = []
    for row in first_rows(rows, rows_to_show(len(rows), top)):
        cells = [number(row.total), *[number(row.major)] * disk]
        if estimated:
            cells += [number(row.margin), number(row.samples)] if row.samples else ["", ""]
        shown.append((cells, row.total, row.share, row.label))
    sums = [sum(getattr(row, name) for row in rows) for name in ("total", "major", "samples")]
    totals = [number(sums[0]), *[number(sums[1])] * disk]
    totals += ["", number(sums[2])] if estimated else []
    return shares_table(title, heads, shown, total=len(rows), totals=totals)


def _as_dict(row: StackRow) -> dict[str, Any]:
    found: dict[str, Any] = {"name": row.label, "total": row.total, "share": round(row.share, 6)}
    found |= {"samples": row.samples, "margin": row.margin} if row.samples else {"major": row.major}
    return found | ({"frames": [frame.as_dict() for frame in row.frames]} if row.frames else {})
