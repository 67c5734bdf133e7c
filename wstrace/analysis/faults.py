"""Faults by page and time, with the losses between them: which fault made its page arrive."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace import schema
from wstrace.analysis.losses import Losses, Numbers, space_of
from wstrace.analysis.tally import begins, distinct, expanded

#: The kinds of memory of which the first read maps the page of zeros, and those with other pages around one.
ANONYMOUS, OF_FILES = (schema.KIND_ANON, schema.KIND_HEAP, schema.KIND_STACK), (schema.KIND_FILE, schema.KIND_SHARED)
#: Ranges of which the faults or pages are searched together, each with up to as many as a huge page has pages.
_AT_ONCE = 1 << 12


class FaultRows(NamedTuple):
    """Faults in any order, each an array of shape (n,).

    key: the page, as losses.key_of() gives it. place: of the program, equal for faults that came from the same one.
    span: the pages of the page-table entry behind the fault, as a power of 2; 0 also where it is not known.
    """

    key: NDArray[np.uint64]
    time: NDArray[np.uint64]
    flags: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    place: NDArray[np.uint32]
    span: NDArray[np.uint8]


class Faults:
    """Faults by page and time.

    A life is what a page holds from a loss to the next one. The faults of one life of a page stand together: a group.
    A fault that brought a huge page of anonymous memory stands in the group of each page of it that any other fault was
    on, too.
    explained: first faults behind a fork, of pages where another place had a second fault behind a further fork.
    order: the row of each fault in `rows`. key, time, flags, kind, place: columns, in this order. span: of faults that
    brought a huge page, where they were; else 0. spans: those that occur. life: the range of the losses since which the
    page held what it held at the fault, 0 = none before it. first: of each group, its first fault. brings: whether each
    fault made its page arrive. split: whether it did so but for that page, which a later one brought again. family: the
    spaces of processes that forked or began by that.
    """

    order: NDArray[Any]
    flags: NDArray[np.uint8]
    span: NDArray[np.uint8]
    anonymous: NDArray[np.bool_]
    brings: NDArray[np.bool_]

    def __init__(self, rows: FaultRows, losses: Losses) -> None:
        self.losses = losses
        self._arrange(rows)
        more, keys, idle = self._covered()
        more, idle = self.order[more], self.order[idle]
        further = np.zeros(len(self), np.bool_)
        if len(more):
            row = np.append(np.arange(len(rows.key)), more)
            columns: list[Any] = [np.append(rows.key, keys), *(column[row] for column in rows[1:])]
            rows = FaultRows(*columns)
            self._arrange(rows)
            further, self.order = self.order >= len(row) - len(more), row[self.order]
        self.forked = losses.are_forks(self.life)
        self.swapped_in = self.anonymous & (
            (self.flags & schema.FAULT_MAJOR) != 0
        )  # nothing else is read from a disk there
        self.brings |= ~self.anonymous & ((self.flags & schema.FAULT_MAJOR) != 0)
        self.forks_of_parents = self._of_parents()
        forks = losses.rows.are_forks
        self.family = distinct(np.concatenate((losses.rows.space[forks], losses.rows.other[forks])))
        self.split = np.zeros(len(self), np.bool_)
        self._zeros_first()
        self.span[further | np.isin(self.order, idle)] = 0
        if len(idle):
            self.brings[self.first[np.isin(self.order[self.first], idle)]] = False
        self.spans = distinct(self.span[self.span > 0]).astype(np.uint64)

    def __len__(self) -> int:
        return len(self.key)

    def _arrange(self, rows: FaultRows) -> None:
        """Sorts the faults by page and time, and groups them by life."""
        by_time = _sorted(rows.time)
        self.order = by_time[np.argsort(rows.key[by_time], kind="stable")].astype(np.int32)
        self.key, self.time, self.flags = rows.key[self.order], rows.time[self.order], rows.flags[self.order]
        self.kind, self.place = rows.kind[self.order], rows.place[self.order]
        self.anonymous = np.isin(self.kind, ANONYMOUS)
        self.span = np.where(self.anonymous, rows.span[self.order], 0)
        losses = self.losses
        self.life: NDArray[Any] = losses.latest(self.key, losses.upto(self.time)).astype(np.int32)
        self.brings = begins(self.key, self.life)
        self.first: NDArray[Any] = np.flatnonzero(self.brings).astype(np.int32)
        new_page = begins(self.key[self.first])
        self._pages = self.key[self.first[new_page]]
        self._groups = np.cumsum(new_page, dtype=np.uint64)
        self._groups -= 1
        self._groups <<= 32
        self._groups |= self.life[self.first].astype(np.uint64)
        self.end: NDArray[Any] = np.append(self.first[1:], np.int32(len(self.key)))

    def _covered(self) -> tuple[Numbers, NDArray[np.uint64], Numbers]:
        """Faults of huge pages, and further pages of these with faults in the same life; those that brought nothing.

        These found a huge page that the kernel had put together: a fault on a base page came before.
        """
        huge, none = np.flatnonzero(self.span), np.zeros(0, np.intp)
        found, idle = [(none, none.astype(np.uint64))], [none]
        for at in range(0, len(huge), _AT_ONCE):
            fault = huge[at : at + _AT_ONCE]
            span = self.span[fault].astype(np.uint64)
            low = self.key[fault] >> span << span
            begin, end = (self._pages.searchsorted(side) for side in (low, low + (np.uint64(1) << span)))
            which, page = expanded(begin, end)
            fault, key = fault[which], self._pages[page]
            group = self.group_of(key, self.losses.latest(key, self.losses.upto(self.time[fault])))
            others = np.flatnonzero((group >= 0) & (key != self.key[fault]))
            fault, key, first = fault[others], key[others], self.first[group[others]]
            late = np.isin(fault, fault[(self.time[first] < self.time[fault]) & (self.span[first] == 0)])
            idle.append(fault[late])
            found.append((fault[~late], key[~late]))
        more, keys = (np.concatenate(one) for one in zip(*found, strict=True))
        return more, keys, np.concatenate(idle)

    def _zeros_first(self) -> None:
        """Where a page of anonymous memory faulted twice the first one read: it mapped the page of zeros.

        A fork in between explains the second fault, too; two forks explain both.
        """
        anonymous = self.anonymous[self.first]
        known = (self.flags & schema.FAULT_ACCESS_KNOWN) != 0
        read = anonymous & known[self.first] & ((self.flags[self.first] & schema.FAULT_WRITE) == 0)
        second = self.first + 1
        twice = anonymous & ~known[self.first] & (second < self.end)
        twice[twice] &= (self.flags[second[twice]] & schema.FAULT_MAJOR) == 0
        self.twice = np.zeros(len(self), np.bool_)  # of the second fault, whether the first one may have brought it
        at = np.flatnonzero(twice)
        parted = self.parted(self.first[at])
        other = self.place[second[at]] != self.place[self.first[at]]
        explained = parted & self.forked[self.first[at]]
        self.explained: NDArray[Any] = self.first[at[explained & other]]
        at, parted, other = at[~explained], parted[~explained], other[~explained]
        self.twice[second[at[~parted & other]]] = True
        self.twice[self.first[at[parted & other]]] = True
        at = np.append(at[~parted], np.flatnonzero(read & (second < self.end) & ~self.forked[self.first]))
        self.brings[self.first[at]] = False
        self.brings[second[at]] = True
        self.split[self.first[at]] = self.span[second[at]] == 0

    def _of_parents(self) -> NDArray[np.uint64]:
        """The forks, by the space of the parent (above 32 bits) and the range of the losses."""
        losses = self.losses
        forks = losses.forks()
        parents = losses.rows.other[losses.row[forks]].astype(np.uint64) << np.uint64(32) | forks.astype(np.uint64)
        parents.sort()
        return parents

    def parted(self, faults: Numbers) -> NDArray[np.bool_]:
        """Whether the process of each fault forked before the one that follows it."""
        return self._forked_between(faults, faults + 1)

    def group_of(self, keys: NDArray[np.uint64], lives: Numbers) -> Numbers:
        """The group of each page in a life; -1 = no fault was on it."""
        if not len(self._pages):
            return np.full(len(keys), -1)
        page = np.minimum(self._pages.searchsorted(keys), len(self._pages) - 1)
        wanted = page.astype(np.uint64) << np.uint64(32) | lives.astype(np.uint64)
        at = np.minimum(self._groups.searchsorted(wanted), len(self._groups) - 1)
        return np.where((self._pages[page] == keys) & (self._groups[at] == wanted), at, -1)

    def upto(self, groups: Numbers, times: NDArray[np.uint64]) -> Numbers:
        """The last fault of each group up to a time; -1 = none."""
        at = self.end[groups] - 1
        late = np.flatnonzero(self.time[at] > times)
        while len(late):  # few: a snapshot is younger than nearly all faults
            at[late] -= 1
            below = at[late] < self.first[groups[late]]
            at[late[below]] = -1
            late = late[~below]
            late = late[self.time[at[late]] > times[late]]
        return at

    def bringer(self, groups: Numbers, last: Numbers) -> Numbers:
        """The last fault of each group up to `last` that brought its page; -1 = none."""
        first = self.first[groups]
        low = int(first.min(initial=len(self)))
        brought = np.flatnonzero(self.brings[low : int(last.max(initial=0)) + 1]) + low
        at = np.append(brought, -1)[brought.searchsorted(last, "right") - 1]
        return np.where(at >= first, at, -1)

    def earliest(
        self,
        low: NDArray[np.uint64],
        high: NDArray[np.uint64],
        since: NDArray[np.uint64],
        until: NDArray[np.uint64],
        among: NDArray[np.bool_] | None = None,
    ) -> Numbers:
        """The first fault in time on the pages from `low` to before `high`, of those that a mask chooses; -1 = none.

        since, until: times, both inclusive. Neighbours that ask the same are searched once.
        """
        new = begins(low, high, since, until)
        which, first_of = np.cumsum(new) - 1, np.flatnonzero(new)
        found = np.full(len(first_of), -1)
        for at in range(0, len(first_of), _AT_ONCE):
            part = first_of[at : at + _AT_ONCE]
            of, fault = expanded(self.key.searchsorted(low[part]), self.key.searchsorted(high[part]))
            time = self.time[fault]
            fits = (time >= since[part][of]) & (time <= until[part][of])
            if among is not None:
                fits &= among[fault]
            of, fault, time = of[fits], fault[fits], time[fits]
            order = np.lexsort((time, of))
            of, fault = of[order], fault[order]
            first = np.flatnonzero(begins(of))
            found[at + of[first]] = fault[first]
        first_in_time: Numbers = found[which]
        return first_in_time

    def _forked_between(self, one: Numbers, other: Numbers) -> NDArray[np.bool_]:
        """Whether the process of each fault `one` forked between that and another fault of its own."""
        return self.forked_since(other, self.losses.upto(self.time[one]))

    def forked_since(self, faults: Numbers, since: Numbers) -> NDArray[np.bool_]:
        """Whether the process of each fault forked before it and behind a range of the losses."""
        space = space_of(self.key[faults]) << np.uint64(32)
        upto = [space | at.astype(np.uint64) for at in (since, self.losses.upto(self.time[faults]))]
        before, after = (self.forks_of_parents.searchsorted(at, "right") for at in upto)
        found: NDArray[np.bool_] = before != after
        return found

    def again(self) -> Numbers:
        """The faults with which a page arrived that had been there before at that address, or was swapped out."""
        arrivals = np.flatnonzero(self.brings | self.swapped_in)
        return arrivals[~begins(self.key[arrivals])]

    def written(self) -> Numbers:
        """The faults on pages that were there already, one of each life of a page."""
        later = np.flatnonzero(~self.brings)
        return later[begins(self.first.searchsorted(later, "right"))] if len(later) else later


def _sorted(times: NDArray[np.uint64]) -> Numbers:
    """The order of times; most come in it."""
    if len(times) < 2 or (times[1:] >= times[:-1]).all():
        return np.arange(len(times))
    return np.argsort(times, kind="stable")
