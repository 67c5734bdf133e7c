"""Which faults copied a page that processes shared since a fork.

Of k processes that hold a page, at most k - 1 copy it: whoever is left alone takes it over, and his fault copies
nothing. So holders are counted, page by page, in order of time, from one fork to the next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.faults import FORKS, Faults
from wstrace.analysis.blame.losses import Losses, page_of, space_of
from wstrace.analysis.segments import begins
from wstrace.schema import LOSS_PERHAPS, LOSS_SHARES

#: What leaves the content where it is.
_HARMLESS = (0, *FORKS, LOSS_SHARES, LOSS_PERHAPS)


class Held(NamedTuple):
    """Pages that are known to have been there without a fault: (key, life) of each, shape (n,)."""

    key: NDArray[np.uint64]
    life: NDArray[np.intp]


class Ends(NamedTuple):
    """When the memory of processes ended: (space, time) of each, shape (n,)."""

    space: NDArray[np.intp]
    time: NDArray[np.uint64]


class Copies(NamedTuple):
    """What sharing() found, as faults (places in Faults).

    faults: those that copied a page. fork: of each, the range of the losses of the fork that it undid.
    taken: those on a page that was there and that nobody else had any more.
    """

    faults: NDArray[np.intp]
    fork: NDArray[np.intp]
    taken: NDArray[np.intp]


class _Events(NamedTuple):
    """What happens to pages of a family, in order of time: a fault, or -1 a loss, -2 - space a page found there."""

    time: NDArray[np.uint64]
    member: NDArray[np.intp]
    page: NDArray[np.intp]
    fault: NDArray[np.intp]


def sharing(faults: Faults, losses: Losses, copyable: NDArray[np.bool_], held: Held, ends: Ends) -> Copies:
    """Counts the holders of every page that was faulted on after a fork.

    Args:
        faults: all faults. losses: all losses.
        copyable: of each fault, whether a write to its page by one process leaves it as it was for the others.
        held: pages that were there without a fault. ends: of processes.
    """
    ranges = np.arange(len(losses) + 1)
    forks = np.flatnonzero(np.isin(losses.event(ranges), FORKS))
    copied, taken = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)]
    if len(forks) and len(faults):
        children = losses.rows.space[losses.row[forks]]
        parents = losses.rows.other[losses.row[forks]]
        family = _families(np.concatenate((children, parents)), children, parents)
        for own in np.unique(family[children]).tolist():
            one = _Family(faults, losses, copyable, forks[family[children] == own], held, ends)
            copied.append(one.copied())
            taken.append(one.taken)
    found = np.sort(np.concatenate(copied))
    return Copies(found, _undone(found, faults, losses, forks), np.concatenate(taken))


def _families(spaces: NDArray[np.intp], children: NDArray[np.intp], parents: NDArray[np.intp]) -> NDArray[np.intp]:
    """The number of each space's family: the smallest space that it descends from or that descends from it."""
    family = np.arange(int(spaces.max()) + 1)
    while True:
        low = np.minimum(family[children], family[parents])
        before = family.copy()
        np.minimum.at(family, children, low)
        np.minimum.at(family, parents, low)
        family = family[family]
        if (family == before).all():
            return family


def _undone(found: NDArray[np.intp], faults: Faults, losses: Losses, forks: NDArray[np.intp]) -> NDArray[np.intp]:
    """The fork that each copy undid: that which began the process, else the last one of its own."""
    life = faults.life[found]
    parents = losses.rows.other[losses.row[forks]].astype(np.uint64) << np.uint64(32) | forks.astype(np.uint64)
    parents.sort()
    asked = space_of(faults.key[found]) << np.uint64(32) | losses.upto(faults.time[found]).astype(np.uint64)
    at = parents.searchsorted(asked, "right") - 1
    last = np.zeros(len(found), np.intp)
    if len(parents):
        own = (at >= 0) & (parents[at] >> np.uint64(32) == asked >> np.uint64(32))
        last[own] = (parents[at[own]] & np.uint64(0xFFFFFFFF)).astype(np.intp)
    return np.where(faults.forked[found] & (last < life), life, last)


class _Family:
    """The processes that are related by forks, and the pages that any of them faulted on after one."""

    def __init__(
        self,
        faults: Faults,
        losses: Losses,
        copyable: NDArray[np.bool_],
        forks: NDArray[np.intp],
        held: Held,
        ends: Ends,
    ) -> None:
        self.faults, self.losses, self.forks = faults, losses, forks
        rows = losses.row[forks]
        self.children, self.parents = losses.rows.space[rows], losses.rows.other[rows]
        self.spaces = np.unique(np.concatenate((self.children, self.parents)))
        member = np.full(int(self.spaces.max()) + 2, -1)
        member[self.spaces] = np.arange(len(self.spaces))
        self.member = member
        self.own = np.flatnonzero((self._members(space_of(faults.key)) >= 0) & copyable)
        again = self.own[faults.forked[self.own] | ~faults.brings[self.own]]
        self.pages = np.unique(page_of(faults.key[again]))
        self.taken = np.zeros(0, np.intp)
        self._copied: list[NDArray[np.intp]] = [self.taken]
        self._taken: list[NDArray[np.intp]] = [self.taken]
        if len(self.pages):
            self.own = self.own[np.isin(page_of(faults.key[self.own]), self.pages)]
            self._events(held, ends)

    def _members(self, spaces: NDArray[np.uint64]) -> NDArray[np.intp]:
        return self.member[np.minimum(spaces, len(self.member) - 1).astype(np.intp)]

    def _events(self, held: Held, ends: Ends) -> None:
        """What happens to the pages: losses come before what happens at the same time."""
        faults, losses = self.faults, self.losses
        parts = [_Events(faults.time[self.own], self._members(space_of(faults.key[self.own])),
                         self.pages.searchsorted(page_of(faults.key[self.own])), self.own)]  # fmt: skip
        ranges = np.arange(1, len(losses) + 1)
        hurts = ~np.isin(losses.event(ranges), _HARMLESS) & (self._members(space_of(losses.first)) >= 0)
        hit = np.flatnonzero(hurts)
        low, high = (self.pages.searchsorted(page_of(side[hit])) for side in (losses.first, losses.last))
        count = high - low
        which = np.repeat(np.arange(len(hit)), count)
        page = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count) + low[which]
        parts.append(_Events(losses.time[1:][hit][which], self._members(space_of(losses.first[hit]))[which], page,
                             np.full(len(which), -1)))  # fmt: skip
        over = self._members(ends.space.astype(np.uint64))
        gone = np.flatnonzero(over >= 0)
        parts.append(_Events(np.repeat(ends.time[gone], len(self.pages)), np.repeat(over[gone], len(self.pages)),
                             np.tile(np.arange(len(self.pages)), len(gone)),
                             np.full(len(gone) * len(self.pages), -1)))  # fmt: skip
        there = self._members(space_of(held.key)) >= 0
        there &= np.isin(page_of(held.key), self.pages) & ~np.isin(losses.event(held.life), FORKS)
        key, since = held.key[there], losses.time[held.life[there]]
        found = -2 - space_of(key).astype(np.intp)
        parts.append(_Events(since, self._members(space_of(key)), self.pages.searchsorted(page_of(key)), found))
        time, member, page, fault = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.lexsort((fault != -1, time))
        self.events = _Events(time[order], member[order], page[order], fault[order])

    def copied(self) -> NDArray[np.intp]:
        """The faults that copied a page; sets `taken`."""
        if not len(self.pages):
            return self.taken
        #: who holds what: of each member and page the object there, named by the fault that made it; 0 = nothing
        state = np.zeros((len(self.spaces), len(self.pages)), np.int64)
        begin = 0
        for fork, child, parent in zip(self.forks.tolist(), self.children.tolist(), self.parents.tolist(), strict=True):
            end = int(self.events.time.searchsorted(self.losses.time[fork], "left"))
            self._pass(state, slice(begin, end))
            state[self.member[child]] = state[self.member[parent]]
            begin = end
        self._pass(state, slice(begin, len(self.events.time)))
        self.taken = np.concatenate(self._taken)
        return np.concatenate(self._copied)

    def _pass(self, state: NDArray[np.int64], part: slice) -> None:
        """Applies the events between two forks. Of each page in a process, the first one leaves what was shared."""
        member, page, fault = (column[part] for column in self.events[1:])
        if not len(page):
            return
        cells: NDArray[np.intp] = member * len(self.pages) + page
        cell, first, last = _first_and_last(cells)
        holds = state.reshape(-1)[cell]
        shared = np.flatnonzero(holds)
        event, thing = first[shared], holds[shared]
        order = np.lexsort((event, thing, page[event]))
        event, thing, shared = event[order], thing[order], shared[order]
        new = begins(thing, page[event])
        start = np.maximum.accumulate(np.where(new, np.arange(len(event)), 0))
        left = (state[:, page[event]] == thing).sum(axis=0) - (np.arange(len(event)) - start)
        is_fault = fault[event] >= 0
        copies, takes = is_fault & (left > 1), is_fault & (left == 1)
        self._copied.append(fault[event[copies]])
        self._taken.append(fault[event[takes]])
        lost = np.zeros(len(cell), np.bool_)
        lost[np.searchsorted(cell, cells[fault == -1])] = True
        made = fault[last] + 1  # 0 of a loss
        keeps = shared[takes]
        keeps = keeps[~lost[keeps]]
        made[keeps] = holds[keeps]
        state.reshape(-1)[cell] = made


def _first_and_last(cells: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """The distinct cells, ascending, and where each comes first and last."""
    order = np.argsort(cells, kind="stable")
    ordered = cells[order]
    begin = np.flatnonzero(begins(ordered))
    end = np.append(begin[1:], len(cells)) - 1
    return ordered[begin], order[begin], order[end]


def no_ends() -> Ends:
    """No process has ended."""
    return Ends(np.zeros(0, np.intp), np.zeros(0, np.uint64))
