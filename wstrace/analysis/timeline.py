"""Timeline: the faults of a trace by label and time, and the bytes that they brought and that are still resident."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import Row
from wstrace.analysis.inputs import LEFT_OUT
from wstrace.analysis.tally import combinations
from wstrace.schema import FAULT_MAJOR, SPAN, SPAN_OPEN
from wstrace.table import Recorded

Figures = NDArray[np.float64]


class Over(NamedTuple):
    """A view over time.

    rows: the labels, as rows without sums. faults, from_disk: numbers of faults, those that read from disk; brought,
    resident: bytes; each of shape (labels, times). untimed: resident bytes that no fault of these times brought.
    """

    rows: list[Row]
    faults: Figures
    from_disk: Figures
    brought: Figures
    resident: Figures
    untimed: NDArray[np.float64]


class Timeline:
    """The faults and resident pages of a composition by time.

    Its figures are those of the rows, cut by the time of the fault that made a page arrive: over all times they sum to
    these, with what has no known fault at no time.
    edges: n + 1 times in ns on the records' clock, ascending; time i is from edges[i] up to before edges[i + 1]. pids:
    the processes of which the faults count; () = all.
    """

    def __init__(self, of: Composition, edges: NDArray[np.uint64], pids: Collection[int] = ()) -> None:
        self.of, self.edges, self.n = of, edges, len(edges) - 1
        inputs, cell = of.inputs, of.fault_cells
        # In the order of the inputs, which is nearly that of time, neighbours have the same cell and time.
        at = edges.searchsorted(inputs.faults["time_ns"], "right") - 1
        at[at >= self.n] = -1  # -1 = at none of these times
        if pids:
            at[~np.isin(inputs.pids[inputs.faults["space"]], list(pids))] = -1
        timed = (at >= 0) & inputs.faults["chosen"]
        rows, which = combinations(cell[timed], at[timed])
        each, major = inputs.faults.get("sampled"), (inputs.faults["flags"] & FAULT_MAJOR) != 0

        def counted(some: NDArray[np.bool_], each: NDArray[Any] | None = None) -> Figures:
            amounts = None if each is None else each[timed & some]
            return np.bincount(which[some[timed]], amounts, len(rows)).astype(np.float64)

        page, time = of.page_cells, np.append(at, -1)[of.owner]
        kept = page != LEFT_OUT
        pages, of_page = combinations(page[kept], time[kept])
        there, resident = (np.append(np.zeros(len(rows)), np.bincount(of_page, each, len(pages))) * of.page_size
                           for each in (None, of.part[kept]))  # fmt: skip
        self._cell = np.append(cell[timed][rows], page[pages])
        self._time = np.append(at[timed][rows], time[pages])
        none = np.zeros(len(pages))
        parts = counted(timed), counted(major), counted(of.gone_faults, each)
        faults, from_disk, gone = (np.append(one, none) for one in parts)
        self._figures = {"faults": faults, "from_disk": from_disk, "brought": there + gone * of.page_size,
                         "resident": resident}  # fmt: skip

    def by(self, *views: str) -> Over:
        """The figures by these dimensions together; the rows are in no order, and have no sums."""
        named = self.of.past.labels(*views)
        shape = len(named.labels), self.n + 1  # the last column is what is at no time
        place = named.of[self._cell] * shape[1] + np.where(self._time < 0, self.n, self._time)
        found = {name: np.bincount(place, one, shape[0] * shape[1]).reshape(shape).astype(np.float64)
                 for name, one in self._figures.items()}  # fmt: skip
        rows = [Row(label, {}) for label in named.labels]
        return Over(rows, untimed=found["resident"][:, -1], **{name: one[:, :-1] for name, one in found.items()})


class Span(NamedTuple):
    """A span: its start and end in ns on the records' clock, its thread and name; open: the trace ended before it."""

    begin_ns: int
    end_ns: int
    pid: int
    tid: int
    name: str
    open: bool


def spans_of(trace: Recorded) -> list[Span]:
    """The spans of a trace by their start, the longer one first."""
    found, names = [], ("time_ns", "end_ns", "pid", "tid", "name", "flags")
    for batch in trace.batches(SPAN.name):
        if not set(names) <= set(batch):  # of another version of wstrace
            continue
        columns = (batch[name].tolist() for name in names)
        found += [Span(begin, max(begin, end), pid, tid, batch.strings[name], bool(flags & SPAN_OPEN))
                  for begin, end, pid, tid, name, flags in zip(*columns, strict=True)]  # fmt: skip
    return sorted(found, key=_from_begin)


def _from_begin(one: Span) -> tuple[int, int]:
    return one.begin_ns, -one.end_ns


def drawn(spans: list[Span], most: int) -> list[tuple[Span, int, int]]:
    """The longest spans, in the order of spans_of(), each with its row among those of its thread, and its depth there.

    The spans of a thread lie within each other, but for those of tasks that take turns on it: these need more rows.
    A span lies in the first row in which it fits.
    """
    threads: dict[tuple[int, int], list[list[int]]] = {}
    found = []
    longest = sorted(spans, key=lambda one: one.begin_ns - one.end_ns)[:most]
    for one in sorted(longest, key=_from_begin):
        rows = threads.setdefault((one.pid, one.tid), [])  # of each row the ends of the spans that are open there
        for row, ends in enumerate(rows):  # noqa: B007
            while ends and ends[-1] <= one.begin_ns:
                ends.pop()
            if not ends or one.end_ns <= ends[-1]:
                break
        else:
            row, ends = len(rows), []
            rows.append(ends)
        found.append((one, row, len(ends)))
        ends.append(one.end_ns)
    return found
