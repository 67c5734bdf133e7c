"""The spans of a trace, and the lanes in which pictures draw them."""

from __future__ import annotations

import bisect
import heapq
from typing import NamedTuple

from wstrace.analysis.moments import Recorded
from wstrace.schema import SPAN, SPAN_OPEN


class Span(NamedTuple):
    """A span: its start and end in ns on the records' clock, its thread and name; open: the trace ended before it."""

    begin_ns: int
    end_ns: int
    pid: int
    tid: int
    name: str
    open: bool


class Place(NamedTuple):
    """Where a span is drawn: its lane among those of its thread, and how many spans of that lane it lies within."""

    lane: int
    depth: int


def spans_of(trace: Recorded) -> list[Span]:
    """The spans of a trace by their start, the longer one first."""
    found, names = [], ("time_ns", "end_ns", "pid", "tid", "name", "flags")
    for batch in trace.batches(SPAN.name):
        if not set(names) <= set(batch):  # of another version of wstrace
            continue
        columns = (batch[name].tolist() for name in names)
        found += [Span(begin, max(begin, end), pid, tid, batch.strings[name], bool(flags & SPAN_OPEN))
                  for begin, end, pid, tid, name, flags in zip(*columns, strict=True)]  # fmt: skip
    return sorted(found, key=lambda one: (one.begin_ns, -one.end_ns))


def places(spans: list[Span]) -> list[Place]:
    """Where each span is drawn, of spans as spans_of() gives them: in a lane each lies within another one or beside it.

    The spans of a thread lie within each other, but for those of tasks that take turns on it: these need more lanes.
    A span lies within the one that ends first of those that it can lie within, else in the first lane that is free.
    """
    threads: dict[tuple[int, int], _Lanes] = {}
    return [threads.setdefault((one.pid, one.tid), _Lanes()).place(one) for one in spans]


class _Lanes:
    """The lanes of a thread. As many tasks may take turns, a lane is found without a look at each."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []  # of each lane the ends of the spans that are open there
        self._inner: list[tuple[int, int]] = []  # the end of each lane's innermost one and its lane, in order
        self._free: list[int] = []  # a heap

    def place(self, one: Span) -> Place:
        """Where the next span by its begin is drawn."""
        while self._inner and self._inner[0][0] <= one.begin_ns:
            lane = self._inner.pop(0)[1]
            ends = self._open[lane]
            while ends and ends[-1] <= one.begin_ns:
                ends.pop()
            if ends:
                bisect.insort(self._inner, (ends[-1], lane))
            else:
                heapq.heappush(self._free, lane)
        around = bisect.bisect_left(self._inner, (one.end_ns, 0))
        if around < len(self._inner):
            lane = self._inner.pop(around)[1]
        elif self._free:
            lane = heapq.heappop(self._free)
        else:
            lane = len(self._open)
            self._open.append([])
        ends = self._open[lane]
        ends.append(one.end_ns)
        bisect.insort(self._inner, (one.end_ns, lane))
        return Place(lane, len(ends) - 1)
