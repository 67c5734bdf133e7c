"""Pages that were there without a fault of their own when a fork shared them.

A fault on such a page copies it, though nothing had brought it before by the records of faults: the kernel wrote it at
an exec, mlock() and the like brought it, or it came with another page of a huge page, as far as that is known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.faults import ANONYMOUS, FORKS, Faults
from wstrace.analysis.blame.losses import Losses, key_of, page_of, space_of
from wstrace.analysis.blame.sharing import Held
from wstrace.analysis.blame.windows import PageSize
from wstrace.analysis.segments import begins
from wstrace.schema import KIND_STACK, LOSS_EXECUTED

#: Forks between a process and the one whose memory it has in the end, that are followed.
GENERATIONS = 64


class Asked(NamedTuple):
    """Pages without a fault in their lives before a fork that shared them, each an array of shape (n,).

    fault: the first one behind that fork, of the process or a child. until: the time of the fork.
    """

    key: NDArray[np.uint64]
    life: NDArray[np.intp]
    until: NDArray[np.uint64]
    fault: NDArray[np.intp]

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Asked:
        """Those of these places."""
        return Asked(self.key[rows], self.life[rows], self.until[rows], self.fault[rows])


def asked(faults: Faults, losses: Losses) -> Asked:
    """The pages that were faulted on behind a fork and not before it, in the life that the fork shared."""
    found = [_own(faults, losses)]
    first = faults.first[faults.forked[faults.first] & faults.anonymous[faults.first]]
    key, life = faults.key[first], faults.life[first]
    for _ in range(GENERATIONS):
        if not len(key):
            break
        until = losses.time[life]
        key = key_of(losses.rows.other[losses.row[life]], page_of(key))
        life = losses.latest(key, life - 1)
        without = faults.group_of(key, life) < 0  # behind the fork: see _own(), before it: the model knows them
        forked = np.isin(losses.event(life), FORKS)
        ends = without & ~forked & ~losses.arrived[life]
        found.append(Asked(key[ends], life[ends], until[ends], first[ends]))
        going = without & forked
        key, life, first = key[going], life[going], first[going]
    together = Asked(*(np.concatenate(columns) for columns in zip(*found, strict=True)))
    order = np.lexsort((together.until, together.key))
    together = together.take(order)
    return together.take(begins(together.key, together.life))  # what the earliest fork shared, later ones did too


def _own(faults: Faults, losses: Losses) -> Asked:
    """Those on which the process itself faulted behind its fork."""
    first = faults.first[faults.anonymous[faults.first] & ~faults.forked[faults.first]]
    forks = faults.forks_of_parents
    whose = space_of(faults.key[first]) << np.uint64(32)
    at = forks.searchsorted(whose | faults.life[first].astype(np.uint64), "right")
    fork = np.append(forks, np.uint64((1 << 64) - 1))[at]
    own = (fork >> np.uint64(32) == whose >> np.uint64(32)) & ~losses.arrived[faults.life[first]]
    first, fork = first[own], (fork[own] & np.uint64(0xFFFFFFFF)).astype(np.intp)
    behind = losses.time[fork] <= faults.time[first]
    first, fork = first[behind], fork[behind]
    return Asked(faults.key[first], faults.life[first], losses.time[fork], first)


class Unfaulted:
    """Which of these pages were there.

    Args:
        of: the pages. faults, losses: of all processes. size: of a page.
        shown: pages of snapshots, not of files, that no fault in their life was on, ascending.
        before: keys of pages that were there before the trace.
        sampled: only one of several faults was recorded, so that others may have been in a range.

    Attributes:
        held: those that were. brought_nothing: the first faults of their lives, which copied or took them over.
        perhaps: of the others, those that came so if the only fault in the range of a huge page brought one.
    """

    def __init__(
        self, of: Asked, faults: Faults, losses: Losses, size: PageSize,
        shown: Held, before: NDArray[np.uint64], *, sampled: bool = False,
    ) -> None:  # fmt: skip
        self._faults, self._losses, self._size = faults, losses, size
        since = losses.time[of.life]
        there = self._of_exec(of)
        if losses.populated is not None:
            there |= losses.populated.within(of.key, since, of.until, np.zeros(len(of.key), np.bool_))
        touched, proven = self._in_huge_pages(of, shown, before)
        whole = ~there & (touched >= 0) & (not sampled)
        since = np.where(whole & proven, faults.time[touched], since)
        there |= whole & proven
        self.held = Held(of.key[there], of.life[there], since[there])
        own = there & (faults.key[of.fault] == of.key)
        self.brought_nothing = of.fault[own]
        perhaps = whole & ~proven
        self.perhaps = Held(of.key[perhaps], of.life[perhaps], since[perhaps])

    def _of_exec(self, of: Asked) -> NDArray[np.bool_]:
        """Pages of a stack above the first one that was faulted on: the exec wrote arguments and environment there.

        It does so without a fault, and the program begins below (get_arg_page() in fs/exec.c, create_elf_tables()).
        """
        faults, losses = self._faults, self._losses
        there = np.zeros(len(of.key), np.bool_)
        rows = np.flatnonzero((faults.kind[of.fault] == KIND_STACK) & (losses.event(of.life) == LOSS_EXECUTED))
        of_stack = np.flatnonzero((faults.kind == KIND_STACK) & (losses.event(faults.life) == LOSS_EXECUTED))
        if not len(rows) or not len(of_stack):
            return there
        order = of_stack[np.lexsort((faults.time[of_stack], faults.life[of_stack]))]
        lives, at = np.unique(faults.life[order], return_index=True)
        begun = page_of(faults.key[order[at]])
        place = np.minimum(lives.searchsorted(of.life[rows]), max(len(lives) - 1, 0))
        known = lives[place] == of.life[rows]
        there[rows] = known & (page_of(of.key[rows]) > begun[place])
        return there

    def _in_huge_pages(
        self, of: Asked, shown: Held, before: NDArray[np.uint64]
    ) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Of each page the only fault before the fork in the range of its huge page, and whether that brought all.

        That is proven by a page of the range which a snapshot showed in the same life without a fault of its own.
        """
        losses, bits = self._losses, np.uint64(self._size.table)
        if losses.populated is not None:
            late = np.full(len(shown.key), np.iinfo(np.uint64).max, np.uint64)
            came = losses.populated.within(shown.key, losses.time[shown.life], late, np.zeros(len(late), np.bool_))
            shown = Held(shown.key[~came], shown.life[~came], shown.since[~came])
        low = of.key >> bits << bits
        new = begins(low, of.life, of.until)
        rows = np.flatnonzero(new)
        early = self._faults.alone(low[rows], self._size.table, losses.time[of.life[rows]], of.until[rows])
        early[(early >= 0) & ~np.isin(self._faults.kind[early], ANONYMOUS)] = -1
        early[(of.life[rows] == 0) & np.isin(low[rows], before >> bits << bits)] = -1  # a page of it was there already
        proven = np.zeros(len(rows), np.bool_)
        if len(shown.key):
            at = np.minimum(shown.key.searchsorted(low[rows]), len(shown.key) - 1)
            proven = (shown.key[at] >> bits << bits == low[rows]) & (shown.life[at] == of.life[rows])
        which = np.cumsum(new) - 1
        return early[which], proven[which]
