"""Faults in order of page and time, and which of them made their page arrive.

A fault brings its page if it is the first since the address last lost its content. Of further faults on a page that is
there already only these bring: one that read a page of a file from disk again (it had been evicted), and, where the
system tells reads from writes, the first write to a page that was only read: that of zeros is in no resident set.
Where it does not tell, the second fault may be such a write; it is kept as a second candidate. So is the second fault
on a page of a file: if the page is the process's own in the end, that write made it; if not, the page may have been
unmapped unseen before the last fault. Shared memory that is there does
not fault at its first write: a second fault tells that the page had gone unseen (truncated, punched, detached), unless
its protection was changed.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.losses import Losses, space_of
from wstrace.analysis.segments import begins
from wstrace.schema import (
    FAULT_ACCESS_KNOWN,
    FAULT_MAJOR,
    FAULT_WRITE,
    KIND_ANON,
    KIND_FILE,
    KIND_HEAP,
    KIND_SHARED,
    KIND_STACK,
    LOSS_FORKED,
    LOSS_PERHAPS_FORKED,
)

#: The kinds of memory whose first read maps the page of zeros.
ANONYMOUS = (KIND_ANON, KIND_HEAP, KIND_STACK)
FORKS = (LOSS_FORKED, LOSS_PERHAPS_FORKED)


class FaultRows(NamedTuple):
    """Faults in any order, each an array of shape (n,).

    key: the page, as losses.key_of() gives it. place: of the program, equal for faults that came from the same one.
    """

    key: NDArray[np.uint64]
    time: NDArray[np.uint64]
    flags: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    place: NDArray[np.uint32]


class Faults:
    """Faults by page and time.

    A life is what a page holds from a loss to the next one. The faults of one life of a page stand together: a group.

    Args:
        rows: the faults.
        losses: what took content away.

    Attributes:
        order: the row of each fault in `rows`.
        key, time, flags, kind, place: columns, in this order.
        life: the range of the losses since which the page held what it held at the fault, 0 = none before it.
        first: of each group, its first fault.
        brings: whether each fault made its page arrive.
        maybe: of each group, the fault that did so if the one before it only read, or its page had gone; -1 = none.
        parted: of each group, whether its process forked between these two: that alone explains the second one.
        family: the spaces of processes that forked or began by that.
        forks_of_parents: the forks, by the space of the parent (above 32 bits) and the range of the losses.
    """

    def __init__(self, rows: FaultRows, losses: Losses) -> None:
        by_time = _sorted(rows.time)
        self.order = by_time[np.argsort(rows.key[by_time], kind="stable")]
        self.key, self.time = rows.key[self.order], rows.time[self.order]
        self.flags, self.kind = rows.flags[self.order], rows.kind[self.order]
        self.place = rows.place[self.order]
        self.losses = losses
        self.life = losses.latest(self.key, losses.upto(self.time))
        new_page, new = begins(self.key), begins(self.key, self.life)
        self.first = np.flatnonzero(new)
        self._pages = _Pages(self.key[new_page])
        #: of each page its first group, and of each group its page and life
        self._group = np.flatnonzero(new_page[self.first])
        of_page = np.repeat(np.arange(len(self._group)), np.diff(self._group, append=len(self.first)))
        self._groups = of_page.astype(np.uint64) << np.uint64(32) | self.life[self.first].astype(np.uint64)
        self.forked = np.isin(losses.event(self.life), FORKS)
        self.anonymous = np.isin(self.kind, ANONYMOUS)
        self.swapped_in = self.anonymous & ((self.flags & FAULT_MAJOR) != 0)  # nothing else is read from a disk there
        self.brings = new.copy()
        self._bring_again()
        self.forks_of_parents = self._of_parents()
        self.maybe, self.parted = self._second_candidates()
        forks = np.isin(losses.rows.event, FORKS)
        self.family = np.union1d(losses.rows.space[forks], losses.rows.other[forks])

    def __len__(self) -> int:
        return len(self.key)

    def _bring_again(self) -> None:
        known = (self.flags & FAULT_ACCESS_KNOWN) != 0
        read_zeros = self.anonymous & known & ((self.flags & FAULT_WRITE) == 0)
        self.brings |= ~self.anonymous & ((self.flags & FAULT_MAJOR) != 0)
        if read_zeros.any():
            number = np.where(read_zeros, len(self), np.arange(len(self)))
            writes = np.minimum.reduceat(number, self.first)
            self.brings[read_zeros & ~self.forked] = False
            self.brings[writes[writes < len(self)]] = True

    def _second_candidates(self) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The second fault of each group, if it may be what `maybe` says, and whether a fork explains it."""
        found, parted = np.full(len(self.first), -1), np.zeros(len(self.first), np.bool_)
        second = self.first + 1
        there = np.flatnonzero(second < np.append(self.first[1:], len(self)))
        second = second[there]
        may = self.anonymous[second] | (self.kind[second] == KIND_FILE)
        may &= (self.flags[second] & (FAULT_ACCESS_KNOWN | FAULT_MAJOR)) == 0
        may |= self.kind[second] == KIND_SHARED
        may &= ~self.forked[second]
        found[there[may]] = second[may]
        parted[there] = self.forked_between(second, *(self.losses.upto(self.time[one]) for one in (second - 1, second)))
        return found, parted

    def _of_parents(self) -> NDArray[np.uint64]:
        """The forks, by the space of the parent and the range of the losses."""
        losses = self.losses
        forks = np.flatnonzero(np.isin(losses.event(np.arange(len(losses) + 1)), FORKS))
        parents = losses.rows.other[losses.row[forks]].astype(np.uint64) << np.uint64(32) | forks.astype(np.uint64)
        parents.sort()
        return parents

    def forked_between(
        self, faults: NDArray[np.intp], since: NDArray[np.intp], until: NDArray[np.intp]
    ) -> NDArray[np.bool_]:
        """Whether the process of each fault forked between two ranges of the losses, the first one exclusive."""
        if not len(self.forks_of_parents):
            return np.zeros(len(faults), np.bool_)
        space = space_of(self.key[faults]) << np.uint64(32)
        before, after = (
            self.forks_of_parents.searchsorted(space | limit.astype(np.uint64), "right") for limit in (since, until)
        )
        found: NDArray[np.bool_] = before != after
        return found

    def does_not_bring(self, faults: NDArray[np.intp]) -> None:
        """Notes faults on pages that were there already, as a child has those of its parent. Called before ready()."""
        self.brings[faults] = False

    def ready(self) -> None:
        """Makes what group_of(), bringer(), between() and alone() need, once `brings` is final."""
        number = np.arange(len(self))
        last = np.maximum.accumulate(np.where(self.brings, number, -1)) if len(self) else number
        last[last < np.repeat(self.first, np.diff(self.first, append=len(self)))] = -1
        self._last = last
        self._of_brings = np.flatnonzero(self.brings)
        self._keys_of_brings = self.key if self.brings.all() else self.key[self._of_brings]

    def arrive_again(self) -> NDArray[np.intp]:
        """The faults with which a page arrived that had been there before at that address, or was swapped out."""
        arrivals = np.flatnonzero(self.brings | self.swapped_in)
        return arrivals[~begins(self.key[arrivals])]

    def group_of(self, keys: NDArray[np.uint64], lives: NDArray[np.intp]) -> NDArray[np.intp]:
        """The group of each page in a life; -1 = no fault was on it."""
        at = self._pages.find(keys)
        found = np.full(len(keys), -1)
        there = np.flatnonzero(at >= 0)
        page, life = at[there], lives[there]
        group = self._group[page]
        other = np.flatnonzero(self.life[self.first[group]] != life)  # few: most pages have one life
        wanted = page[other].astype(np.uint64) << np.uint64(32) | life[other].astype(np.uint64)
        place = np.minimum(self._groups.searchsorted(wanted), len(self._groups) - 1)
        group[other] = np.where(self._groups[place] == wanted, place, -1)
        found[there] = group
        return found

    def bringer(self, groups: NDArray[np.intp], times: NDArray[np.uint64]) -> NDArray[np.intp]:
        """The last fault of each group that brought its page up to a time; -1 = none."""
        at = self.latest(groups, times)
        return np.where(at >= 0, self._last[at], -1)

    def latest(self, groups: NDArray[np.intp], times: NDArray[np.uint64]) -> NDArray[np.intp]:
        """The last fault of each group up to a time; -1 = none."""
        end = np.append(self.first[1:], len(self))
        at = end[groups] - 1
        late = np.flatnonzero(self.time[at] > times)
        while len(late):  # few: a snapshot is younger than nearly all faults
            at[late] -= 1
            below = at[late] < self.first[groups[late]]
            at[late[below]] = -1
            late = late[~below]
            late = late[self.time[at[late]] > times[late]]
        return at

    def changes(self, first: NDArray[np.intp], last: NDArray[np.intp]) -> NDArray[np.intp]:
        """How often faults of a page came from another place than the one before, from each first to each last one."""
        changes: NDArray[np.intp] = self._turns[last] - self._turns[first]
        return changes

    @cached_property
    def _turns(self) -> NDArray[np.intp]:
        turned = np.zeros(len(self), np.intp)
        np.cumsum(self.place[1:] != self.place[:-1], out=turned[1:])
        return turned

    def between(
        self,
        first: NDArray[np.uint64],
        last: NDArray[np.uint64],
        since: NDArray[np.uint64],
        until: NDArray[np.uint64],
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_], NDArray[np.bool_]]:
        """The first fault in time that brought a page of each range within a time, and the last one; -1 = none.

        The last one is that of another place of the program than the first, if there is any: of faults at A, B and A
        again either A or B brought what had no fault of its own.

        Args:
            first, last: keys of the pages, the last one exclusive. since, until: times, both inclusive.

        Returns:
            The two, whether all lie on several pages, and whether they came from more than two places.
        """
        low, high = self._keys_of_brings.searchsorted(first), self._keys_of_brings.searchsorted(last)
        count = high - low
        total = int(count.sum())
        early, late = np.full(len(first), -1), np.full(len(first), -1)
        several, more = np.zeros(len(first), np.bool_), np.zeros(len(first), np.bool_)
        if total:
            has = np.flatnonzero(count)
            begin = np.cumsum(count[has]) - count[has]
            which = np.repeat(np.arange(len(has)), count[has])
            fault = self._of_brings[np.arange(total) - begin[which] + low[has][which]]
            time = self.time[fault]
            fits = (time >= since[has][which]) & (time <= until[has][which])
            by_time = _sorted(time)
            rank = np.empty(total, np.intp)
            rank[by_time] = np.arange(total)
            earliest = np.minimum.reduceat(np.where(fits, rank, total), begin)
            place = self.place[fault]
            first_place = place[by_time[np.minimum(earliest, total - 1)]]
            ahead = np.where(place != first_place[which], total, 0)  # what is of another place comes before the others
            latest = np.maximum.reduceat(np.where(fits, rank + ahead, -1), begin)
            lowest = np.minimum.reduceat(np.where(fits, fault, len(self)), begin)
            highest = np.maximum.reduceat(np.where(fits, fault, -1), begin)
            some = highest >= 0
            several[has[some]] = self.key[lowest[some]] != self.key[highest[some]]
            early[has[some]], late[has[some]] = fault[by_time[earliest[some]]], fault[by_time[latest[some] % total]]
            last_place = self.place[late[has]]
            third = fits & (place != first_place[which]) & (place != last_place[which])
            more[has] = np.logical_or.reduceat(third, begin)
        return early, late, several, more

    def alone(
        self, low: NDArray[np.uint64], bits: int, since: NDArray[np.uint64], until: NDArray[np.uint64]
    ) -> NDArray[np.intp]:
        """The first fault in time that brought a page of each range within a time; -1 = none, or of several pages.

        Each range is found by two searches, whatever is in it: where a program forks and maps again often, one range
        has thousands of faults, and is asked about for thousands of forks. between() would look at each pair of these:
        49,120 faults of eight threads that map, fork and unmap took 28 s and 2.3 GB.

        Args:
            low: keys of the first pages of ranges. bits: a range has 1 << bits pages. since, until: both inclusive.
        """
        brings, shift = self._of_brings, np.uint64(bits)
        if not len(brings):
            return np.full(len(low), -1)
        ranges = self.key[brings] >> shift
        new = begins(ranges)
        lows, times = ranges[new], np.sort(self.time[brings])

        def place(of_range: NDArray[np.intp], moment: NDArray[np.intp]) -> NDArray[np.uint64]:
            return of_range.astype(np.uint64) << np.uint64(32) | moment.astype(np.uint64)

        places = place(np.cumsum(new) - 1, times.searchsorted(self.time[brings]))
        order = np.argsort(places, kind="stable")
        places, brings = places[order], brings[order]
        turns = np.flatnonzero(begins(self.key[brings]))
        number = np.minimum(lows.searchsorted(low >> shift), len(lows) - 1)
        at = places.searchsorted(place(number, times.searchsorted(since)))
        end = places.searchsorted(place(number, times.searchsorted(until, "right")))
        next_page = np.append(turns, len(brings))[turns.searchsorted(at, "right")]
        found: NDArray[np.intp] = np.where(
            (at < end) & (end <= next_page) & (lows[number] == low >> shift), np.append(brings, -1)[at], -1
        )
        return found


class _Pages:
    """Distinct pages, ascending, as runs of neighbours: most faults are on pages beside each other."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        new = np.ones(len(keys), np.bool_)
        np.not_equal(keys[1:] - keys[:-1], np.uint64(1), out=new[1:])
        self._at = np.flatnonzero(new)
        self._first = keys[self._at]
        self._length = np.diff(self._at, append=len(keys)).astype(np.uint64)

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        """The place of each page, -1 = it is none of these."""
        if not len(self._at):
            return np.full(len(keys), -1)
        run = np.maximum(self._first.searchsorted(keys, "right") - 1, 0)
        inside = keys - self._first[run]  # wraps around below the first page
        return np.where(inside < self._length[run], self._at[run] + inside.astype(np.intp), -1)


def _sorted(times: NDArray[np.uint64]) -> NDArray[np.intp]:
    """The order of times; most come in it."""
    if len(times) < 2 or (times[1:] >= times[:-1]).all():
        return np.arange(len(times))
    return np.argsort(times, kind="stable")
