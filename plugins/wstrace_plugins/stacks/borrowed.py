"""Borrowed stacks: which faults without a sample have the stack of those sampled at their place, and which have none.

A place is a thread, an instruction, a frame pointer and a stack pointer: what a row tells of the stack without a copy
of it. The same place can be reached through different callers. Therefore a fault borrows only between two samples of
its place, and only where all samples of the place so far had one and the same whole stack. Of such a fault nothing is
proven: samples are few, and a rare caller may have had none. So it counts as no sample, and no total includes it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch
from wstrace.schema import HOW_OWN
from wstrace_plugins.stacks.join import Joined

#: places that are known; at a further one nothing is borrowed
MOST_PLACES = 1 << 16
_UNKNOWN, _DIFFERING = 0, 0xFFFF_FFFF
_MIX = (0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB, 0xD6E8_FEB8_6659_FD93)
_HALF = np.uint64(32)


class Borrowed(NamedTuple):
    """Rows of a batch that borrow, shape (n,), and the call sites of these stacks."""

    rows: NDArray[np.intp]
    stack: NDArray[np.uint32]


NOTHING = Borrowed(np.zeros(0, np.intp), np.zeros(0, np.uint32))


class Lender:
    """The places of samples, with the one stack of each.

    borrowed: faults that got a stack; without_registers: faults without the registers of a 64-bit program.
    """

    def __init__(self) -> None:
        self.borrowed = self.without_registers = 0
        self._places = np.zeros((0, len(_MIX)), "<u8")
        self._stack = np.zeros(0, np.uint32)  # _DIFFERING where not all samples agree

    def lend(self, batch: Batch, registers: Batch, joined: Joined) -> Borrowed:
        """The faults of a batch that borrow, and what.

        Args:
            batch: rows of `page_fault`, in order of time.
            registers: FAULT_REGISTERS of the same rows.
            joined: the sampled ones of them.
        """
        if not np.array_equal(batch["time_ns"], registers["time_ns"]):
            self.without_registers += len(batch)
            return NOTHING
        known = len(self._places)
        who = batch["pid"].astype("<u8") << _HALF | batch["tid"]
        words = np.concatenate(
            (self._places, np.stack((who, batch["pc"], registers["bp"], registers["sp"]), axis=1)), dtype="<u8"
        )
        stack = np.zeros(len(words), np.uint32)
        stack[:known] = self._stack
        stack[joined.rows + known] = np.where(joined.stacks.how == HOW_OWN, joined.stacks.stack, _DIFFERING)
        rows = np.flatnonzero(words[:, -1])  # those without a stack pointer are nowhere
        self.without_registers += len(words) - len(rows)
        hashes = (words[rows] * np.array(_MIX, "<u8")).sum(axis=1, dtype="<u8")
        order = rows[np.argsort(hashes ^ hashes >> _HALF, kind="stable")]
        if not len(order):
            return NOTHING
        groups = _Groups(words[order], stack[order])
        lend = groups.between & (groups.only != _DIFFERING)[groups.number]
        kept = groups.remember(MOST_PLACES, order < known)
        lend &= kept[groups.number]
        self._places, self._stack = words[order[groups.begins[kept]]], groups.only[kept]
        found = order[lend] - known
        self.borrowed += len(found)
        return Borrowed(found, groups.only[groups.number[lend]])


class _Groups:
    """Rows that were sorted by place, and what the samples among them say.

    number: of each row its place. begins: the first row of each place. only: the stack of all samples of each place,
    _UNKNOWN = no sample, _DIFFERING. between: whether a row has samples of its place before and after it.
    """

    def __init__(self, words: NDArray[Any], stack: NDArray[np.uint32]) -> None:
        n = len(words)
        first = np.append(True, (words[1:] != words[:-1]).any(axis=1))
        self.begins, self.number = np.flatnonzero(first), np.cumsum(first) - 1
        sampled, at = stack != _UNKNOWN, np.arange(n)
        self.only = np.maximum.reduceat(stack, self.begins)
        least = np.minimum.reduceat(np.where(sampled, stack, np.uint32(_DIFFERING)), self.begins)
        self.only[(self.only != _UNKNOWN) & (least != self.only)] = _DIFFERING
        before = np.maximum.accumulate(np.where(sampled, at, -1))
        after = np.minimum.accumulate(np.where(sampled, at, n)[::-1])[::-1]
        ends = np.append(self.begins[1:], n)
        self.between = ~sampled & (before >= self.begins[self.number]) & (after < ends[self.number])

    def remember(self, most: int, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which places are kept: those that were known, and of the others with samples as many as there is room for."""
        kept = known[self.begins].copy()
        fresh = np.flatnonzero((self.only != _UNKNOWN) & ~kept)
        kept[fresh[: max(most - int(kept.sum()), 0)]] = True
        return kept
