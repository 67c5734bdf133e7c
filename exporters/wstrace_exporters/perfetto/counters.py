"""What was resident over time, by process and owner: the steps of counters.

A page of the counted snapshot counts from the fault that brought it; one without a known fault, from the snapshot.
Without a snapshot it is what was brought.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.composition import Composition
from wstrace.analysis.tally import combinations

#: The owners with counters of their own, over all processes, and the most steps of a counter.
OWNERS, STEPS = 20, 1000


class Counter(NamedTuple):
    """The bytes of an owner over time. space: its process; -1 = of all owners that have no counter of their own."""

    space: int
    name: str
    times: NDArray[np.uint64]
    values: NDArray[np.int64]


def counters(of: Composition) -> Iterator[Counter]:
    """The counters of the largest owners, and one of all others: the last values sum to what is resident."""
    faults = of.history.faults
    each = None
    cells = of.page_cells if of.rss else of.fault_cells
    labels = of.past.labels("line")
    label, rows = labels.of[cells], labels.labels
    if of.rss:
        verb = "resident"
        space, first = of.column("space"), of.found.fault
        time = np.where(first >= 0, faults.time[first] if len(faults) else np.uint64(0), of.column("time"))
    else:
        verb = "brought"
        brought = faults.order[np.flatnonzero(faults.brings)]
        label, space, time = (column[brought] for column in (label, of.inputs.faults["space"],
                                                             of.inputs.faults["time_ns"]))  # fmt: skip
        each = None if of.past.sampled == 1 else of.inputs.faults["sampled"][brought]
    some, which = combinations(space, label)
    largest = np.argsort(-np.bincount(which, minlength=len(some)), kind="stable")[:OWNERS]
    number = np.full(len(some), len(largest))
    number[largest] = np.arange(len(largest))
    owner = number[which]
    order = np.lexsort((time, owner))
    bounds = owner[order].searchsorted(np.arange(len(largest) + 2))
    for at, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        if begin == end:
            continue
        mine = order[begin:end]
        times, values = steps(time[mine], of.page_size, None if each is None else each[mine])
        if at < len(largest):
            row = some[largest[at]]
            yield Counter(int(space[row]), f"{verb}: {rows[label[row]][0].text}", times, values)
        else:
            yield Counter(-1, f"{verb}: (all others)", times, values)


def steps(
    times: NDArray[np.uint64], size: int, each: NDArray[np.uint32] | None = None
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The times, ascending, at which a sum grows by `size` each, as at most STEPS times, and the sum at each.

    each: by how many times the size it grows, where that is not one.
    """
    width = max(int(times[-1] - times[0]) // (STEPS - 1), 1)
    bins = (times - times[0]) // np.uint64(width)
    last = np.flatnonzero(np.append(bins[1:] != bins[:-1], np.True_))
    return times[last], (last + 1 if each is None else np.cumsum(each, dtype=np.int64)[last]) * size
