"""Join: which row of `page_fault` each sampled stack belongs to, and how many rows of its thread it stands for.

The kernel samples a fault before it serves it, and records it afterwards; in between, the thread has no other fault. So
a sample belongs to the next row of its thread, if that has the same instruction and address, and to none otherwise: the
fault ended in a signal, or its row was lost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
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
        tids, slots = _threads(batch["tid"])
        order = np.argsort(slots, kind="stable")
        ends = np.cumsum(np.bincount(slots, minlength=len(tids)))
        begins = ends - np.diff(ends, prepend=0)
        at, found = self._next_rows(batch, tids, order, begins, ends)
        position = np.zeros(len(order), np.int64)
        position[order] = np.arange(len(order))
        # of two events that sampled one fault (of a thread that was attached twice) one is kept
        rows, first = np.unique(at, return_index=True)
        stacks = found.take(first)
        return Joined(rows, stacks, self._weights(tids, slots, position, begins, ends, rows))

    def _next_rows(
        self,
        batch: Batch,
        tids: NDArray[np.uint32],
        order: NDArray[np.intp],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> tuple[NDArray[np.intp], Stacks]:
        """The rows to which waiting samples belong, and these; those that no row follows yet wait on."""
        waiting = self.waiting
        if not len(waiting.tid) or not len(tids):
            return np.zeros(0, np.intp), NO_STACKS
        times = np.ascontiguousarray(batch["time_ns"])
        slot = np.minimum(np.searchsorted(tids, waiting.tid), len(tids) - 1)
        mine = tids[slot] == waiting.tid
        next_row = np.full(len(slot), -1, np.int64)
        for thread in distinct(slot[mine]).tolist():
            own = np.flatnonzero(mine & (slot == thread))
            rows = order[begins[thread] : ends[thread]]
            behind = np.searchsorted(times[rows], waiting.time_ns[own])
            there = behind < len(rows)
            next_row[own[there]] = rows[behind[there]]
        came = next_row >= 0
        at, found = next_row[came], waiting.take(came)
        same = (batch["pc"][at] == found.pc) & (batch["va"][at] == found.va)
        self.without_row += int(len(same) - same.sum())
        self.waiting = waiting.take(~came)
        return at[same], found.take(same)

    def _weights(
        self,
        tids: NDArray[np.uint32],
        slots: NDArray[np.intp],
        position: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        rows: NDArray[np.intp],
    ) -> NDArray[np.uint32]:
        """For each sampled row: the rows of its thread since the sampled one before it, itself included."""
        slot = slots[rows]
        grouped = np.argsort(slot, kind="stable")
        place = position[rows[grouped]] - begins[slot[grouped]] + 1
        new = np.append(True, slot[grouped][1:] != slot[grouped][:-1])[: len(grouped)]
        before = np.append(0, place[:-1])[: len(place)]
        carried = np.array([self._since.get(tid, 0) for tid in tids[slot[grouped]].tolist()], np.int64)
        weight = np.zeros(len(rows), np.int64)
        weight[grouped] = np.where(new, place + carried, place - before)
        last = dict(zip(slot[grouped].tolist(), place.tolist(), strict=True))
        if len(self._since) + len(tids) > MOST_THREADS:
            self._since.clear()
        for thread, (tid, size) in enumerate(zip(tids.tolist(), (ends - begins).tolist(), strict=True)):
            self._since[tid] = size - last[thread] if thread in last else self._since.get(tid, 0) + size
        return np.minimum(weight, 0xFFFF_FFFF).astype("<u4")


def _threads(tid: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
    """The distinct threads, sorted, and for each row the index of its own."""
    if len(tid) and (tid == tid[0]).all():
        return tid[:1], np.zeros(len(tid), np.intp)
    tids, slots = np.unique(tid, return_inverse=True)
    return tids, slots.astype(np.uint16) if len(tids) <= 1 << 16 else slots  # numpy sorts 16 bits by radix
