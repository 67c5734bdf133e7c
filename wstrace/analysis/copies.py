"""Which faults copied a page that processes shared since a fork.

Of k processes that hold a page, at most k - 1 copy it: whoever is left alone takes it over, and his fault copies
nothing. So holders are counted, page by page, in order of time; a fork, an exec or an end concerns all of a process.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.faults import Faults
from wstrace.analysis.losses import FORKS, Losses, Numbers, page_of, space_of
from wstrace.analysis.tally import begins, distinct, expanded
from wstrace.schema import LOSS_EXECUTED, LOSS_PERHAPS, LOSS_POPULATED, LOSS_SHARES

#: What begins a life, and leaves what a process wrote itself where it is.
_STAYS = (LOSS_PERHAPS, LOSS_POPULATED)
_HARMLESS = (0, *FORKS, LOSS_SHARES, *_STAYS)
#: Pages times processes that live at once of which the holders are counted together: that takes 8 bytes of each.
_AT_ONCE = 1 << 23
#: Forks, execs and ends of a family, times the parts in which its pages are counted: each takes some 30 us.
_MOST_STEPS = 1 << 17


class Held(NamedTuple):
    """Pages that are known to have been there without a fault of their own, each an array of shape (n,).

    key, life: the page, and its life. since: the time from which on it was there.
    """

    key: NDArray[np.uint64]
    life: Numbers
    since: NDArray[np.uint64]


class Ends(NamedTuple):
    """When the memory of processes ended: (space, time) of each, shape (n,)."""

    space: Numbers
    time: NDArray[np.uint64]


class Copies(NamedTuple):
    """What sharing() found, as faults (places in Faults).

    faults: those that copied a page. fork: of each, the range of the losses of the fork that it undid.
    taken: the first ones since a fork on a page that was there and that nobody else had any more.
    uncounted: processes that are related by more forks, of more pages, than are counted.
    """

    faults: Numbers
    fork: Numbers
    taken: Numbers
    uncounted: int = 0


class _Events(NamedTuple):
    """What happens to pages of a family, in order of time: a fault, or -1 a loss, -2 - space a page found there."""

    time: NDArray[np.uint64]
    member: Numbers
    page: Numbers
    fault: Numbers


def sharing(faults: Faults, losses: Losses, copyable: NDArray[np.bool_], held: Held, ends: Ends) -> Copies:
    """Counts the holders of every page that was faulted on after a fork; not in families past _MOST_STEPS.

    copyable: of each fault, whether a write to its page by one process leaves it as it was for the others. held: pages
    that were there without a fault. ends: of processes.
    """
    forks = losses.forks()
    copied, taken, uncounted = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)], 0
    if len(forks) and len(faults):
        children = losses.rows.space[losses.row[forks]]
        parents = losses.rows.other[losses.row[forks]]
        family = _families(np.concatenate((children, parents)), children, parents)
        for own in distinct(family[children]).tolist():
            one = _Family(faults, losses, copyable, forks[family[children] == own], held, ends)
            parts = one.parts()
            if len(parts) * len(one.steps) > _MOST_STEPS:
                uncounted += len(one.spaces)
                continue
            for pages in parts:
                copied.append(one.copied(pages, held))
                taken.append(one.taken)
    found = np.sort(np.concatenate(copied))
    return Copies(found, _undone(found, faults, losses, forks), np.concatenate(taken), uncounted)


def _families(spaces: Numbers, children: Numbers, parents: Numbers) -> Numbers:
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


def _undone(found: Numbers, faults: Faults, losses: Losses, forks: Numbers) -> Numbers:
    """The fork that each copy undid: the last one up to it that the process came from or had itself."""
    row = losses.row[forks]
    spaces = np.concatenate((losses.rows.space[row], losses.rows.other[row])).astype(np.uint64)
    known = np.sort(spaces << np.uint64(32) | np.concatenate((forks, forks)).astype(np.uint64))
    wanted = space_of(faults.key[found]) << np.uint64(32) | losses.upto(faults.time[found]).astype(np.uint64)
    return (known[known.searchsorted(wanted, "right") - 1] & np.uint64(0xFFFFFFFF)).astype(np.intp)


class _Family:
    """The processes that are related by forks, and the pages that any of them faulted on after one."""

    def __init__(
        self,
        faults: Faults,
        losses: Losses,
        copyable: NDArray[np.bool_],
        forks: Numbers,
        held: Held,
        ends: Ends,
    ) -> None:
        self.faults, self.losses, self.forks = faults, losses, forks
        rows = losses.row[forks]
        self.children, self.parents = losses.rows.space[rows], losses.rows.other[rows]
        self.spaces = distinct(np.concatenate((self.children, self.parents)))
        member = np.full(int(self.spaces.max()) + 2, -1)
        member[self.spaces] = np.arange(len(self.spaces))
        self.member = member
        self._faults = np.flatnonzero((self._members(space_of(faults.key)) >= 0) & copyable)
        self._page = page_of(faults.key[self._faults])
        wanted = faults.forked | ~faults.brings | np.isin(losses.event(faults.life), _STAYS)
        there = np.isin(self._page, page_of(held.key[self._members(space_of(held.key)) >= 0]))
        self._pages = distinct(self._page[wanted[self._faults] | there])
        #: What happens to all pages of a process, in order of time: (time, member, its parent) of each fork; of each
        #: exec and end, which come behind a fork of the same time, the parent is -1.
        self.steps = self._steps(ends)

    def parts(self) -> list[NDArray[np.uint64]]:
        """The pages, some at a time: each page's holders are its own."""
        step = max(_AT_ONCE // len(self.spaces), 1)
        return [self._pages[begin : begin + step] for begin in range(0, len(self._pages), step)]

    def _members(self, spaces: NDArray[np.uint64]) -> Numbers:
        return self.member[np.minimum(spaces, len(self.member) - 1).astype(np.intp)]

    def _events(self, held: Held) -> None:
        """What happens to single pages: losses come before what happens at the same time."""
        faults, losses = self.faults, self.losses
        parts = [_Events(faults.time[self.own], self._members(space_of(faults.key[self.own])),
                         self.pages.searchsorted(page_of(faults.key[self.own])), self.own)]  # fmt: skip
        ranges = np.arange(1, len(losses) + 1)
        hurts = ~np.isin(losses.event(ranges), (*_HARMLESS, LOSS_EXECUTED))
        hurts &= self._members(space_of(losses.first)) >= 0
        hit = np.flatnonzero(hurts)
        low, high = (self.pages.searchsorted(page_of(side[hit])) for side in (losses.first, losses.last))
        which, page = expanded(low, high)
        parts.append(_Events(losses.time[1:][hit][which], self._members(space_of(losses.first[hit]))[which], page,
                             np.full(len(which), -1)))  # fmt: skip
        there = self._members(space_of(held.key)) >= 0
        there &= np.isin(page_of(held.key), self.pages) & ~losses.are_forks(held.life)
        key, since = held.key[there], held.since[there]
        found = -2 - space_of(key).astype(np.intp)
        parts.append(_Events(since, self._members(space_of(key)), self.pages.searchsorted(page_of(key)), found))
        time, member, page, fault = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.lexsort((fault != -1, time))
        self.events = _Events(time[order], member[order], page[order], fault[order])

    def copied(self, pages: NDArray[np.uint64], held: Held) -> Numbers:
        """The faults that copied one of these pages; sets `taken`."""
        self.pages, self.own = pages, self._faults[np.isin(self._page, pages)]
        self._copied, self._taken = list[Numbers](), list[Numbers]()
        self._events(held)
        #: who holds what: of each member and page the object there, 0 = nothing. It is numbered by the fault that made
        #: it, or behind all faults by who was found with it.
        state = np.zeros((len(self.spaces), len(self.pages)), np.int64)
        #: of each object how many hold it
        self._holders = np.zeros(1 + len(self.faults) + state.size, np.int32)
        #: whether its holder alone has faulted on it since a fork shared it
        self._settled = np.zeros(len(self._holders), np.bool_)
        begin = 0
        for time, child, parent in self.steps:
            end = int(self.events.time.searchsorted(np.uint64(time), "left"))
            self._pass(state, slice(begin, end))
            begin, own = end, state[child]
            if own.any():
                self._holders[own] -= 1  # in a row every object is another one: each is of one page
            own[:] = 0
            if parent >= 0:
                own[:] = state[parent]
                self._holders[own] += 1
                self._settled[own] = False
        self._pass(state, slice(begin, len(self.events.time)))
        none = np.zeros(0, np.intp)
        self.taken = np.concatenate([none, *self._taken])
        return np.concatenate([none, *self._copied])

    def _steps(self, ends: Ends) -> list[tuple[int, int, int]]:
        losses = self.losses
        executed = 1 + np.flatnonzero(losses.event(np.arange(1, len(losses) + 1)) == LOSS_EXECUTED)
        spaces = np.concatenate((losses.rows.space[losses.row[executed]], ends.space))
        over = self._members(spaces.astype(np.uint64))
        gone = over >= 0
        time = np.concatenate((losses.time[self.forks], np.concatenate((losses.time[executed], ends.time))[gone]))
        member = np.concatenate((self.member[self.children], over[gone]))
        parent = np.concatenate((self.member[self.parents], np.full(int(gone.sum()), -1)))
        order = np.argsort(time, kind="stable")
        return list(zip(time[order].tolist(), member[order].tolist(), parent[order].tolist(), strict=True))

    def _pass(self, state: NDArray[np.int64], part: slice) -> None:
        """Applies the events between two forks. Of each page in a process, the first one leaves what was shared."""
        member, page, fault = (column[part] for column in self.events[1:])
        if not len(page):
            return
        cells: Numbers = member * len(self.pages) + page
        cell, first, last = _first_and_last(cells)
        holds = state.reshape(-1)[cell]
        shared = np.flatnonzero(holds)
        event, thing = first[shared], holds[shared]
        order = np.lexsort((event, thing, page[event]))
        event, thing, shared = event[order], thing[order], shared[order]
        new = begins(thing, page[event])
        start = np.maximum.accumulate(np.where(new, np.arange(len(event)), 0))
        left = self._holders[thing] - (np.arange(len(event)) - start)
        is_fault = fault[event] >= 0
        copies, stays = is_fault & (left > 1), is_fault & (left == 1)
        self._copied.append(fault[event[copies]])
        self._taken.append(fault[event[stays & ~self._settled[thing]]])
        lost = np.zeros(len(cell), np.bool_)
        lost[np.searchsorted(cell, cells[fault == -1])] = True
        made = np.where(fault[last] < -1, 1 + len(self.faults) + cell, fault[last] + 1)  # 0 of a loss
        keeps = shared[stays]
        keeps = keeps[~lost[keeps]]
        made[keeps] = holds[keeps]
        state.reshape(-1)[cell] = made
        np.subtract.at(self._holders, holds, 1)
        np.add.at(self._holders, made, 1)
        self._settled[made] = True


def _first_and_last(cells: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The distinct cells, ascending, and where each comes first and last."""
    order = np.argsort(cells, kind="stable")
    ordered = cells[order]
    begin = np.flatnonzero(begins(ordered))
    end = np.append(begin[1:], len(cells)) - 1
    return ordered[begin], order[begin], order[end]
