"""The timeline: what arrived when, by owner; marks; spans."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.composition import Composition
from wstrace.analysis.moments import marks_of
from wstrace.analysis.timeline import Over, Timeline, drawn, spans_of
from wstrace_exporters.html.document import name, varints

#: The columns of the picture, to which the brush snaps.
BINS = 400
#: The owners that have a colour of their own, and the views that there are.
OWNERS = 8
VIEWS = ("line", "package", "file", "kind")
#: The marks and the spans that are drawn, and the rows of spans.
MARKS, SPANS, ROWS = 200, 200, 12
_FIGURES = ("faults", "from_disk", "brought", "resident")


class Times:
    """The columns of the picture: times of equal length, whole microseconds, so that seconds in decimals are exact.

    first: of the first one, in microseconds since the time that reports count from. width: of each, likewise. n: how
    many there are; 0 = no fault has a time.
    """

    def __init__(self, of: Composition) -> None:
        times, self.origin = of.history.faults.time, of.origin_ns
        self.first = self.width = self.n = 0
        if len(times) and times.max() > 0:
            begin, end = int(times.min()), int(times.max())
            self.first = (begin - self.origin) // 1000
            span = (end - self.origin) // 1000 + 1 - self.first
            self.width = max(-(-span // BINS), 1)
            self.n = -(-span // self.width)
        #: in ns on the records' clock
        edges = self.origin + 1000 * (self.first + self.width * np.arange(self.n + 1, dtype=np.int64))
        self.edges: NDArray[np.uint64] = edges.astype(np.uint64)

    def at(self, times: NDArray[np.uint64]) -> NDArray[np.intp]:
        """The column of each time; -1 and n = before the first and behind the last one."""
        return self.edges.searchsorted(times, "right") - 1

    def seconds(self, time_ns: int) -> float:
        """A time as reports have it."""
        return (time_ns - self.origin) / 1e9


def timeline(line: Timeline, times: Times) -> dict[str, Any]:
    """The picture's figures by each view: a row an owner, a number a column."""
    of = line.of
    found: dict[str, Any] = {"first": times.first, "width": times.width, "n": times.n,
                             "windows": "until" in of.inputs.faults}  # fmt: skip
    found["views"] = {view: _owners(line.by(view), of.page_size) for view in VIEWS} if times.n else {}
    return found


def _owners(over: Over, page: int) -> dict[str, Any]:
    """The owners with the most, and the others together: varints, owner by owner. Bytes are in halves of pages."""
    sums = {figure: getattr(over, figure).sum(axis=1) for figure in _FIGURES}
    sums["resident"] = sums["resident"] + over.untimed
    weight = sum(column / max(column.sum(), 1) for column in sums.values())
    order = np.argsort(-np.asarray(weight), kind="stable")
    order = order[np.any([column[order] > 0 for column in sums.values()], axis=0)]
    first, rest = order[:OWNERS], order[OWNERS:]
    labels = [name(over.rows[at].label) for at in first.tolist()] + ["(others)"] * bool(len(rest))

    def written(values: NDArray[np.float64], unit: float) -> str:
        chosen = np.array([values[at] for at in first] + [values[rest].sum(axis=0)] * bool(len(rest)))
        return varints(np.round(chosen / unit).astype(np.int64).ravel())

    units = {"brought": page / 2, "resident": page / 2}
    figures = {figure: written(getattr(over, figure), units.get(figure, 1)) for figure in _FIGURES}
    return {"labels": labels, "unit": page / 2, **figures, "untimed": written(over.untimed, page / 2)}


def marks(of: Composition, times: Times) -> dict[str, Any]:
    """The marks of the trace: seconds and text."""
    found = marks_of(of.trace)
    return {"marks": [[times.seconds(time), name(text)] for time, text in found[:MARKS]], "all_marks": len(found)}


def spans(of: Composition, times: Times) -> dict[str, Any]:
    """The longest spans of the time that is shown: row, seconds of begin and end, name, thread, whether still open."""
    every = spans_of(of.trace)
    if not times.n:
        return {"spans": [], "all_spans": len(every), "seen_spans": 0}
    first, last = int(times.edges[0]), int(times.edges[-1])
    seen = [one for one in every if one.begin_ns < last and one.end_ns >= first]
    found, rows = [], dict[tuple[int, int, int, int], int]()
    for one, place, depth in drawn(seen, SPANS):
        row = rows.setdefault((one.pid, one.tid, place, depth), len(rows))
        if row < ROWS:
            found.append(
                [row, times.seconds(one.begin_ns), times.seconds(one.end_ns), name(one.name), one.tid, one.open]
            )
    return {"spans": found, "all_spans": len(every), "seen_spans": len(seen)}
