"""Rows that two events of one thread wrote of the same fault, where each of them has taken the time for itself.

On Linux 6.1 it has, so that no time tells them from two faults; 6.12 and 6.18 were seen to hand the first event's time
on to the second. Both rows lie one behind the other: the kernel writes them without letting anything else run on the
CPU (perf_swevent_event() in kernel/events/core.c). A thread has two events for all of its faults or for none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def second_of_pairs(
    same: NDArray[np.bool_], threads: NDArray[np.uint64], times: NDArray[np.uint64]
) -> tuple[NDArray[np.bool_], bool]:
    """Which rows are the second ones of threads with two events, and whether the last row waits for its second one.

    A thread has two where more of its faults come in pairs than alone. Of many at one place, as of a program that
    discards a page and touches it in a loop, pairs are told by their times, which are nearer to each other.

    Args:
        same: whether a row is of the same place, thread and instruction as the row before it; never the first one.
        threads: the thread of each row. times: in ns, of each row.
    """
    run = np.cumsum(~same) - 1
    begins = np.flatnonzero(~same)
    lengths = np.diff(np.append(begins, len(same)))
    place = np.arange(len(same)) - begins[run]
    gaps = np.diff(times, prepend=times[:1]).astype(np.float64)
    second, further = place & 1 == 1, (place & 1 == 0) & (place > 0)
    inner, outer = (np.bincount(run[rows], gaps[rows], len(begins)) for rows in (second, further))
    half = lengths // 2
    in_pairs = (lengths & 1 == 0) & ((half == 1) | (2 * inner * (half - 1) < outer * half))
    _, owner = np.unique(threads[begins], return_inverse=True)
    twice = (np.bincount(owner, in_pairs) > np.bincount(owner, ~in_pairs))[owner]
    return second & twice[run], bool(twice[-1] and lengths[-1] & 1)
