"""Bringers: for each page that is resident at a time, the fault that made it arrive, or the reason why none is known.

The way back in time: the life of the page at that time, its faults, else those whose window can hold it; else the life
before, at the place where a move took the content from, or in the process that a fork copied it from.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.faults import FORKS, Faults
from wstrace.analysis.blame.losses import Losses, key_of, page_of
from wstrace.analysis.blame.windows import POWERS, Mapped, reach
from wstrace.analysis.segments import begins
from wstrace.schema import (
    KIND_FILE,
    KIND_SHARED,
    LOSS_EXECUTED,
    LOSS_LAZILY_FREED,
    LOSS_MOVED,
    LOSS_PERHAPS,
    LOSS_PERHAPS_FORKED,
    LOSS_SHARES,
)

#: How a page's bringer was found, or the reason why none is known; values of `Found.how`.
HOWS = ("", "own", "window", "huge page", "khugepaged", "not seen", "before the trace", "exec", "too long a way",
        "shared out")  # fmt: skip
NONE, OWN, WINDOW, HUGE, KHUGEPAGED, NOT_SEEN, BEFORE, EXEC, TOO_LONG, SHARED_OUT = range(len(HOWS))

#: Moves and forks that are followed back.
_MOST_STEPS = 4096
#: The pages of a huge page, as a power of 2.
_HUGE = 9


class PageRows(NamedTuple):
    """Resident pages in ascending order of key, each an array of shape (n,).

    file: whether other pages of its mapping can come with it (files and shared memory). low, high: the first page of
    its mapping and the one past it; offset: of the first, in pages of the file. Both are 0 where not known. noticed:
    whether its first write faults even where it is there, as in shared mappings of files that are written back.
    """

    key: NDArray[np.uint64]
    time: NDArray[np.uint64]
    file: NDArray[np.bool_]
    huge: NDArray[np.bool_]
    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    offset: NDArray[np.uint64]
    noticed: NDArray[np.bool_]

    def take(self, rows: NDArray[np.intp]) -> PageRows:
        """Those of these places."""
        return PageRows(self.key[rows], self.time[rows], self.file[rows], self.huge[rows], self.low[rows],
                        self.high[rows], self.offset[rows], self.noticed[rows])  # fmt: skip


class Found(NamedTuple):
    """The bringers of pages, each an array of shape (n,).

    first, second: faults (places in Faults); -1 = none is known. Where they differ either of the two may be it.
    how: index of HOWS. assumed: what happened to the page in between is not certain, as records of it may be lost.
    """

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    how: NDArray[np.uint8]
    assumed: NDArray[np.bool_]


def bringers(
    pages: PageRows,
    faults: Faults,
    losses: Losses,
    limits: NDArray[np.intp] | None = None,
    *,
    resident: NDArray[np.uint64] | None = None,
    lossless: bool = False,
    sampled: bool = False,
) -> Found:
    """The fault that brought each page.

    Args:
        pages: at their times.
        faults, losses: of all processes.
        limits: the ranges of the losses that count for each page; None = those up to its time.
        resident: the keys of all pages that are there, ascending; None = no others than these.
        lossless: no fault and no move was lost. Then what was perhaps discarded has not come again without a fault
            that is here, and a page without one was not discarded.
        sampled: only one of several faults was recorded, so that no page is known to have come with that of another.
    """
    resident = pages.key if resident is None else resident
    walk = _Walk(pages, faults, losses, limits, resident, lossless=lossless, sampled=sampled)
    found = walk.found()
    doubtful = walk.perhaps_kept(found)
    if len(doubtful):
        order = doubtful[np.argsort(walk.key[doubtful], kind="stable")]
        life = walk.life[order]
        before = pages.take(order)._replace(key=walk.key[order], time=losses.time[life])
        earlier = bringers(before, faults, losses, life - 1, resident=resident, sampled=sampled)
        known = earlier.first >= 0
        found.first[order[known]] = earlier.first[known]
    return found


class _Walk:
    """The pages whose bringer is not known yet, each at the place and time up to which its way back has come."""

    def __init__(
        self,
        pages: PageRows,
        faults: Faults,
        losses: Losses,
        limits: NDArray[np.intp] | None,
        resident: NDArray[np.uint64],
        *,
        lossless: bool,
        sampled: bool,
    ) -> None:
        self.pages, self.faults, self.losses, self.lossless = pages, faults, losses, lossless
        self.sampled = sampled
        self.resident = resident
        n = len(pages.key)
        self.first, self.second = np.full(n, -1), np.full(n, -1)
        self.how, self.assumed = np.zeros(n, np.uint8), np.zeros(n, np.bool_)
        self.key, self.time = pages.key.copy(), pages.time.copy()
        self.limit = losses.upto(self.time) if limits is None else limits.copy()
        self.moved = np.zeros(n, np.bool_)
        self.life = np.zeros(n, np.intp)  # that of the bringer

    def found(self) -> Found:
        """Walks all pages to their ends."""
        rows = np.arange(len(self.key))
        for _ in range(_MOST_STEPS):
            if not len(rows):
                break
            life = self.losses.latest(self.key[rows], self.limit[rows])
            self.life[rows], asked = life, rows
            for step in (self._own,) if self.sampled else (self._own, self._huge, self._window):
                left = step(rows, life)
                rows, life = rows[left], life[left]
            found = (self.first[asked] >= 0) & (not self.sampled)
            self._before_a_write(asked[found & self.pages.noticed[asked]])
            rows = self._back(rows, life)
        self.how[rows] = TOO_LONG
        return Found(self.first, self.second, self.how, self.assumed)

    def perhaps_kept(self, found: Found) -> NDArray[np.intp]:
        """The pages that may have been there before their bringer: what was before it was perhaps discarded."""
        return np.flatnonzero((found.first >= 0) & (self.losses.event(self.life) == LOSS_PERHAPS))

    def _own(self, rows: NDArray[np.intp], life: NDArray[np.intp]) -> NDArray[np.intp]:
        """Pages with a fault of their own in this life. Returns the places of the others in rows."""
        faults = self.faults
        group = faults.group_of(self.key[rows], life)
        at = np.flatnonzero(group >= 0)
        fault = faults.bringer(group[at], self.time[rows[at]])
        at, fault = at[fault >= 0], fault[fault >= 0]
        second = faults.maybe[group[at]]
        fits = (second > fault) & (faults.time[second] <= self.time[rows[at]])
        kind, in_file = faults.kind[fault], self.pages.file[rows[at]]
        fits &= ~((kind == KIND_FILE) & in_file)  # the second fault was a write to a page that was there
        second = np.where(fits, second, fault)
        # in a private mapping of a file the write makes a page of its own, which a snapshot tells from one of the file
        made = np.isin(kind, (KIND_FILE, KIND_SHARED)) & ~in_file
        self._bring(rows[at], np.where(made, second, fault), second, OWN)
        return _others(rows, at)

    def _huge(self, rows: NDArray[np.intp], life: NDArray[np.intp]) -> NDArray[np.intp]:
        """Pages of a huge page: its only fault brought all; after faults on several pages it was put together."""
        at = np.flatnonzero(self.pages.huge[rows] & ~self.pages.file[rows])
        if not len(at):
            return np.arange(len(rows))
        low = self.key[rows[at]] >> np.uint64(_HUGE) << np.uint64(_HUGE)
        early, _, several = self._between(low, low + np.uint64(1 << _HUGE), life[at], rows[at])
        one = (early >= 0) & ~several
        self._bring(rows[at[one]], early[one], early[one], HUGE)
        self.how[rows[at[several]]] = KHUGEPAGED
        return _others(rows, at[one | several])

    def _window(self, rows: NDArray[np.intp], life: NDArray[np.intp]) -> NDArray[np.intp]:
        """Pages of files that came with another one: what the kernel maps around it, or a whole large folio."""
        pages = self.pages
        left = np.arange(len(rows))
        here = page_of(self.key[rows])
        mapped = pages.file[rows] & (pages.low[rows] <= here) & (here < pages.high[rows]) & ~self.moved[rows]
        at = np.flatnonzero(mapped)
        for power in POWERS:
            if not len(at):
                break
            begin, end, whole = reach(self._mapped(rows[at]), power, self.resident)
            at, begin, end = at[whole], begin[whole], end[whole]  # no larger folio is whole where this one is not
            row = rows[at]
            early, late, _ = self._between(begin, end, life[at], row)
            fits = early >= 0
            self._bring(row[fits], early[fits], late[fits], WINDOW)
            left = np.setdiff1d(left, at[fits], assume_unique=True)
            at = at[~fits]
        return left

    def _mapped(self, rows: NDArray[np.intp]) -> Mapped:
        pages = self.pages
        return Mapped(self.key[rows], pages.low[rows], pages.high[rows], pages.offset[rows], pages.key[rows])

    def _before_a_write(self, rows: NDArray[np.intp]) -> None:
        """Pages that have a bringer, which may have written to what an earlier one had brought with its window."""
        faults = self.faults
        for power in POWERS if len(rows) else ():
            begin, end, whole = reach(self._mapped(rows), power, self.resident)
            early, late, _ = self._between(begin, end, self.life[rows], rows)
            place = faults.place[self.second[rows]]
            early = np.where((faults.place[early] == place) & (faults.place[late] != place), late, early)
            earlier = (early >= 0) & whole
            earlier[earlier] = faults.time[early[earlier]] < faults.time[self.first[rows[earlier]]]
            self.first[rows[earlier]] = early[earlier]

    def _between(
        self, first: NDArray[np.uint64], last: NDArray[np.uint64], life: NDArray[np.intp], rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
        """Faults.between() in a life, asked once for neighbours that ask the same."""
        since, until = self.losses.time[life], self.time[rows]
        new = begins(first, since, until)
        asked = np.flatnonzero(new)
        early, late, several = self.faults.between(first[asked], last[asked], since[asked], until[asked])
        which = np.cumsum(new) - 1
        return early[which], late[which], several[which]

    def _bring(self, rows: NDArray[np.intp], first: NDArray[np.intp], second: NDArray[np.intp], how: int) -> None:
        self.first[rows], self.second[rows], self.how[rows] = first, second, how

    def _back(self, rows: NDArray[np.intp], life: NDArray[np.intp]) -> NDArray[np.intp]:
        """Takes pages to the life before, where it is known. Returns those that are not at their end."""
        losses, event = self.losses, self.losses.event(life)
        arrived = losses.arrived[life]
        forked = np.isin(event, FORKS)
        shared = event == LOSS_SHARES
        freed, perhaps = event == LOSS_LAZILY_FREED, event == LOSS_PERHAPS
        unsure = (event == LOSS_PERHAPS_FORKED) | (perhaps & (not self.lossless))
        self.assumed[rows[unsure]] = True
        going = ((event == LOSS_MOVED) & arrived) | forked | shared | freed | perhaps
        ends = rows[~going]
        reason = np.where(life[~going] == 0, BEFORE, np.where(event[~going] == LOSS_EXECUTED, EXEC, NOT_SEEN))
        self.how[ends] = np.where(self.how[ends] == NONE, reason, self.how[ends])
        row = losses.row[life]
        for at, other in ((forked, True), (shared, True), ((event == LOSS_MOVED) & arrived, False)):
            which = np.flatnonzero(at)
            page = page_of(self.key[rows[which]])
            loss = row[which]
            if other:
                self.key[rows[which]] = key_of(losses.rows.other[loss], page)
            else:
                from_page = page - losses.rows.to[loss] + losses.rows.start[loss]
                self.key[rows[which]] = key_of(losses.rows.space[loss], from_page)
                self.moved[rows[which]] = True
        back = np.flatnonzero(going & ~shared)
        self.limit[rows[back]] = life[back] - 1 - arrived[back]
        self.time[rows[back]] = losses.time[life[back]]
        left: NDArray[np.intp] = rows[going]
        return left


def _others(rows: NDArray[np.intp], at: NDArray[np.intp]) -> NDArray[np.intp]:
    """The places in rows that are not among `at`."""
    left = np.ones(len(rows), np.bool_)
    left[at] = False
    return np.flatnonzero(left)
