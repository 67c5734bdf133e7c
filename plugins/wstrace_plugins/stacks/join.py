"""Join: which row of `page_fault` each sampled stack belongs to, and how many rows of its thread it stands for.

The kernel samples a fault before it serves it, and records it afterwards; in between, the thread has no other fault. So
a sample belongs to the next row of its thread, if that has the same instruction and address, and to none otherwise: the
fault ended in a signal, or its row was lost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct, rows_of_each
from wstrace.batch import Batch

#: samples that wait for their row; threads of which the rows since their last sample are counted
MOST_WAITING = 65_536
MOST_THREADS = 65_536


class Stacks(NamedTuple):
    """Unwound samples, columns of shape (n,): when, who and where, the innermost call site, and how it was had."""

    time_ns: NDArray[Any]
    tid: NDArray[Any]
    pc: NDArray[Any]
    va: NDArray[Any]
    stack: NDArray[Any]
    how: NDArray[Any]

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Stacks:
        """Those of these rows."""
        return Stacks(*(column[rows] for column in self))


NO_STACKS = Stacks(*(np.zeros(0, dtype) for dtype in ("<u8", "<u4", "<u8", "<u8", "<u4", "u1")))


class Joined(NamedTuple):
    """Rows of a batch to which samples belong, shape (m,), with these samples, and the rows that each stands for."""

    rows: NDArray[np.intp]
    stacks: Stacks
    weight: NDArray[np.uint32]


class Join:
    """Joins samples to the rows of one batch after the other.

    without_row counts the samples to which no row belongs.
    """

    def __init__(self) -> None:
        self.waiting = NO_STACKS
        self.without_row = 0
        self._since: dict[int, int] = {}

    def add(self, stacks: Stacks) -> None:
        """Adds samples; the oldest of too many are counted as without row."""
        pairs: Any = zip(self.waiting, stacks, strict=True)
        merged = Stacks(*map(np.concatenate, pairs))
        order = np.argsort(merged.time_ns, kind="stable")
        self.without_row += max(len(order) - MOST_WAITING, 0)
        self.waiting = merged.take(order[-MOST_WAITING:])

    def rows(self, batch: Batch) -> Joined:
        """The rows of a batch of `page_fault`, which are in order of time, to which samples belong."""
        threads = rows_of_each(batch["tid"])
        times, pc, va = (np.ascontiguousarray(batch[name]) for name in ("time_ns", "pc", "va"))
        waiting, came = self.waiting, np.zeros(len(self.waiting.tid), bool)
        found_rows, samples, weights = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)], [np.zeros(0, np.int64)]
        sampled = {*distinct(waiting.tid).tolist()}
        if len(self._since) + len(threads) > MOST_THREADS:
            self._since.clear()
        for tid, rows in threads:
            since = self._since.get(tid, 0)
            if tid in sampled:
                own = np.flatnonzero(waiting.tid == tid)
                behind = np.searchsorted(times[rows], waiting.time_ns[own])
                own, behind = own[behind < len(rows)], behind[behind < len(rows)]
                came[own] = True
                same = (pc[rows[behind]] == waiting.pc[own]) & (va[rows[behind]] == waiting.va[own])
                self.without_row += int(len(same) - same.sum())
                # of two events that sampled one fault (of a thread that was attached twice) one is kept
                behind, first = np.unique(behind[same], return_index=True)
                found_rows.append(rows[behind])
                samples.append(own[same][first])
                weights.append(np.diff(behind, prepend=-1 - since))
                since = -1 - int(behind[-1]) if len(behind) else since
            self._since[tid] = since + len(rows)
        self.waiting = waiting.take(~came)
        weight = np.minimum(np.concatenate(weights), 0xFFFF_FFFF).astype("<u4")
        return Joined(np.concatenate(found_rows), waiting.take(np.concatenate(samples)), weight)
