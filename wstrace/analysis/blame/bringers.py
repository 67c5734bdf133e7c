"""Bringers: for each page that is resident at a time, the fault that made it arrive, or the reason why none is known.

The way back in time: the life of the page at that time, its faults, else those whose window can hold it; else the life
before, at the place where a move took the content from, or in the process that a fork copied it from.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.faults import FORKS, Faults
from wstrace.analysis.blame.losses import Losses, Populated, key_of, page_of, space_of
from wstrace.analysis.blame.windows import Mapped, PageSize, folio, reach
from wstrace.analysis.segments import begins
from wstrace.schema import (
    KIND_FILE,
    KIND_SHARED,
    LOSS_EVICTED,
    LOSS_EXECUTED,
    LOSS_LAZILY_FREED,
    LOSS_MOVED,
    LOSS_PERHAPS,
    LOSS_PERHAPS_FORKED,
    LOSS_PERHAPS_UNMAPPED,
    LOSS_SHARES,
)

#: How a page's bringer was found, or the reason why none is known; values of `Found.how`.
HOWS = ("", "own", "window", "huge page", "khugepaged", "not seen", "before the trace", "exec", "too long a way",
        "shared out", "MAP_POPULATE or mlock")  # fmt: skip
NONE, OWN, WINDOW, HUGE, KHUGEPAGED, NOT_SEEN, BEFORE, EXEC, TOO_LONG, SHARED_OUT, POPULATED = range(len(HOWS))

#: Losses of pages of files alone.
_OF_FILES = (LOSS_EVICTED, LOSS_PERHAPS_UNMAPPED)
#: Moves and forks that are followed back.
_MOST_STEPS = 4096
#: Lives of pages before those in which they perhaps came that are looked at: two bringers of each are told.
_MOST_DOUBTS = 16
#: Pages that are asked for at once, each with up to as many faults as a page table has pages.
_AT_ONCE = 1 << 12


class PageRows(NamedTuple):
    """Resident pages in ascending order of key, each an array of shape (n,).

    file: whether other pages of its mapping can come with it (files and shared memory). low, high: the first page of
    its mapping and the one past it; offset: of the first, in pages of the file. Both are 0 where not known. writable:
    whether its mapping is. noticed: whether its first write faults even where it is there, as in shared mappings of
    files that are written back.
    """

    key: NDArray[np.uint64]
    time: NDArray[np.uint64]
    file: NDArray[np.bool_]
    huge: NDArray[np.bool_]
    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    offset: NDArray[np.uint64]
    writable: NDArray[np.bool_]
    noticed: NDArray[np.bool_]

    def take(self, rows: NDArray[np.intp]) -> PageRows:
        """Those of these places."""
        return PageRows(self.key[rows], self.time[rows], self.file[rows], self.huge[rows], self.low[rows],
                        self.high[rows], self.offset[rows], self.writable[rows], self.noticed[rows])  # fmt: skip


class Found(NamedTuple):
    """The bringers of pages, each an array of shape (n,).

    first, second: faults (places in Faults); -1 = none is known. Where they differ either of the two may be it.
    how: index of HOWS. assumed: what happened to the page in between is not certain, as records of it may be lost.
    doubted: it may be another one than these two, as records do not tell reads from writes, or a third one fits.
    populated: it may have come without a fault, as mlock() and the like have brought such pages.
    """

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    how: NDArray[np.uint8]
    assumed: NDArray[np.bool_]
    doubted: NDArray[np.bool_]
    populated: NDArray[np.bool_]


def bringers(
    pages: PageRows,
    faults: Faults,
    losses: Losses,
    limits: NDArray[np.intp] | None = None,
    *,
    resident: NDArray[np.uint64] | None = None,
    size: PageSize,
    lossless: bool = False,
    sampled: bool = False,
    doubts: int = 0,
) -> Found:
    """The fault that brought each page.

    Args:
        pages: at their times.
        faults, losses: of all processes.
        limits: the ranges of the losses that count for each page; None = those up to its time.
        resident: the keys of all pages that are there, ascending; None = no others than these.
        size: of a page, and of what one fault maps around it.
        lossless: no fault and no move was lost. Then what was perhaps discarded has not come again without a fault
            that is here, and a page without one was not discarded.
        sampled: only one of several faults was recorded, so that no page is known to have come with that of another.
        doubts: how often these pages were perhaps gone, and came with a fault again.
    """
    resident = pages.key if resident is None else resident
    walk = _Walk(pages, faults, losses, limits, resident, size, lossless=lossless, sampled=sampled)
    found = walk.found()
    if losses.populated is not None:
        way = _Walk(pages, faults, losses, limits, resident, size, lossless=lossless, sampled=sampled)
        found.populated[:] = way.populated(losses.populated)
        found.doubted[found.populated & (found.first >= 0)] = True
    doubtful = walk.perhaps_kept(found)
    if doubts == _MOST_DOUBTS:
        found.doubted[doubtful] = True
    elif len(doubtful):
        order = doubtful[np.argsort(walk.key[doubtful], kind="stable")]
        life = walk.life[order]
        before = pages.take(order)._replace(key=walk.key[order], time=losses.time[life], low=walk.low[order],
                                            high=walk.high[order])  # fmt: skip
        earlier = bringers(before, faults, losses, life - 1, resident=resident, size=size,
                           lossless=lossless, sampled=sampled, doubts=doubts + 1)  # fmt: skip
        known = np.flatnonzero(earlier.first >= 0)
        rows, first, second = order[known], earlier.first[known], earlier.second[known]
        kept = faults.swapped_in[found.first[rows]]  # whoever had brought what was swapped out brought it
        several = ~kept & ((found.first[rows] != found.second[rows]) | (first != second))
        found.doubted[rows] |= earlier.doubted[known] | several
        found.first[rows] = np.where(kept, first, second)  # else the latest of those before it
        found.second[rows] = np.where(kept, second, found.second[rows])
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
        size: PageSize,
        *,
        lossless: bool,
        sampled: bool,
    ) -> None:
        self.pages, self.faults, self.losses, self.lossless = pages, faults, losses, lossless
        self.sampled = sampled
        self.resident, self.size = resident, size
        n = len(pages.key)
        self.first, self.second = np.full(n, -1), np.full(n, -1)
        self.how = np.zeros(n, np.uint8)
        self.assumed, self.doubted = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        self.key, self.time = pages.key.copy(), pages.time.copy()
        self.limit = losses.upto(self.time) if limits is None else limits.copy()
        self.low, self.high = pages.low.copy(), pages.high.copy()  # of the mapping, at that place
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
            # a page of a file may have come with another one before a move, and faulted or come in a window behind it
            came = self.losses.arrived[self.life[asked]] & self.pages.file[asked]
            self.doubted[asked[found & came]] = True
            self._before_a_write(asked[found & self.pages.noticed[asked] & self._mapped_there(asked)])
            rows = self._back(rows, life)
        self.how[rows] = TOO_LONG
        none = np.zeros(len(self.key), np.bool_)
        return Found(self.first, self.second, self.how, self.assumed, self.doubted, none)

    def populated(self, by: Populated) -> NDArray[np.bool_]:
        """The pages that may have come without a fault somewhere on their whole ways, whatever faults were on them."""
        found = np.zeros(len(self.key), np.bool_)
        rows = np.arange(len(self.key))
        for _ in range(_MOST_STEPS):
            if not len(rows):
                break
            life = self.losses.latest(self.key[rows], self.limit[rows])
            found[rows] |= by.within(self.key[rows], self.losses.time[life], self.time[rows], self.pages.file[rows])
            rows = self._back(rows, life)
        return found

    def perhaps_kept(self, found: Found) -> NDArray[np.intp]:
        """The pages that may have been there before their bringer: what was before it was perhaps discarded, or freed
        lazily. Of pages that processes share none is freed, and a write copies them (madvise_free_pte_range()).
        """
        event = self.losses.event(self.life)
        freed = (event == LOSS_LAZILY_FREED) | (np.isin(event, _OF_FILES) & ~self.pages.file)
        freed &= np.isin(space_of(self.key), self.faults.family) | self._swapped(found.first, event)
        perhaps = (event == LOSS_PERHAPS) | ((event == LOSS_PERHAPS_UNMAPPED) & self.pages.file)
        return np.flatnonzero((found.first >= 0) & (perhaps | freed))

    def _swapped(self, fault: NDArray[np.intp], event: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Whether each fault found a page that was swapped out, or may have: what is reclaimed is not lost."""
        swapped, anonymous = (np.append(one, False)[fault] for one in (self.faults.swapped_in, self.faults.anonymous))
        return np.asarray(swapped | (anonymous & (event == LOSS_PERHAPS_UNMAPPED)))

    def _own(self, rows: NDArray[np.intp], life: NDArray[np.intp]) -> NDArray[np.intp]:
        """Pages with a fault of their own in this life. Returns the places of the others in rows."""
        faults = self.faults
        group = faults.group_of(self.key[rows], life)
        at = np.flatnonzero(group >= 0)
        fault = faults.bringer(group[at], self.time[rows[at]])
        there = at[(fault < 0) & (faults.time[faults.first[group[at]]] <= self.time[rows[at]])]
        self.doubted[rows[there]] = True  # it faulted nevertheless: what it had found may have been the page of zeros
        at, fault = at[fault >= 0], fault[fault >= 0]
        second, parted = faults.maybe[group[at]], faults.parted[group[at]]
        fits = (second > fault) & (faults.time[second] <= self.time[rows[at]])
        kind, in_file = faults.kind[fault], self.pages.file[rows[at]]
        of_file = np.isin(kind, (KIND_FILE, KIND_SHARED))
        fits &= ~((kind == KIND_FILE) & in_file)
        # a fork explains the second fault, unless the first one had only read: the page of zeros, or one of a file
        doubt = fits & parted & ~of_file
        self.doubted[rows[at]] |= doubt & (faults.place[second] != faults.place[fault])
        second = np.where(fits & ~doubt, second, fault)
        # in a private mapping of a file the write makes a page of its own, which a snapshot tells from one of the file
        made = of_file & ~in_file & ~parted
        self._bring(rows[at], np.where(made, second, fault), second, OWN)
        self._again(rows[at], group[at], (kind == KIND_FILE) & in_file)
        return _others(rows, at)

    def _again(self, rows: NDArray[np.intp], group: NDArray[np.intp], of_file: NDArray[np.bool_]) -> None:
        """Pages of files on which there were further faults: writes to what was there, or it had been unmapped unseen.

        Reclaim unmaps what it then keeps in the page cache, such as dirty pages: shrink_folio_list() in mm/vmscan.c.
        """
        rows, group = rows[of_file], group[of_file]
        faults, first = self.faults, self.first[rows]
        last = faults.latest(group, self.time[rows])
        other = faults.place[last] != faults.place[first]
        self.second[rows] = np.where(other, last, first)
        self.doubted[rows] |= faults.changes(first, last) > other

    def _huge(self, rows: NDArray[np.intp], life: NDArray[np.intp]) -> NDArray[np.intp]:
        """Pages of a huge page: its only fault brought all; after faults on several pages it was put together."""
        at = np.flatnonzero(self.pages.huge[rows] & ~self.pages.file[rows])
        if not len(at):
            return np.arange(len(rows))
        bits = np.uint64(self.size.table)
        low = self.key[rows[at]] >> bits << bits
        early, _, several, _ = self._between(low, low + (np.uint64(1) << bits), life[at], rows[at])
        one = (early >= 0) & ~several
        self._bring(rows[at[one]], early[one], early[one], HUGE)
        self.how[rows[at[several]]] = KHUGEPAGED
        return _others(rows, at[one | several])

    def _window(self, rows: NDArray[np.intp], life: NDArray[np.intp]) -> NDArray[np.intp]:
        """Pages of files that came with another one: what the kernel maps around it, or a whole large folio.

        A fault on a larger folio that reaches out of its window may have brought the page as well; in a mapping that is
        only read, none that would have brought a page with a later fault, too. A write maps its own page alone.
        """
        faults, left = self.faults, np.arange(len(rows))
        at = np.flatnonzero(self.pages.file[rows] & self._mapped_there(rows) & bool(len(faults)))
        for power in self.size.powers:
            if not len(at):
                break
            begin, end, whole = reach(self._mapped(rows[at]), power, self.resident, self.size)
            at, begin, end = at[whole], begin[whole], end[whole]  # no larger folio is whole where this one is not
            row = rows[at]
            early, late, _, more = self._between(begin, end, life[at], row)
            known = self.first[row] >= 0
            if len(read := np.flatnonzero(known & ~self.pages.writable[row])):
                inside = folio(self._mapped(row[read]), power)
                only, last, several, others = self._between(*inside, life[at[read]], row[read])
                one = only >= 0  # a folio came whole with the only fault on it, and not whole with faults on several
                early[read] = np.where(several, -1, np.where(one, only, early[read]))
                late[read], more[read] = np.where(one, last, late[read]), np.where(one, others, more[read])
            fits = early >= 0
            told = [faults.place[one[row]] for one in (self.first, self.second)]
            third = [(faults.place[one] != told[0]) & (faults.place[one] != told[1]) for one in (early, late)]
            self.doubted[row] |= fits & (more | (known & (third[0] | third[1])))
            new = fits & ~known
            self._bring(row[new], early[new], late[new], WINDOW)
            self.doubted[row[new]] |= self.moved[row[new]]  # its mapping may have been larger
            left = np.setdiff1d(left, at[new], assume_unique=True)
        return left

    def _mapped_there(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether the mapping of each page is known at the place up to which its way back has come."""
        here = page_of(self.key[rows])
        known: NDArray[np.bool_] = (self.low[rows] <= here) & (here < self.high[rows])
        return known

    def _mapped(self, rows: NDArray[np.intp]) -> Mapped:
        return Mapped(self.key[rows], self.low[rows], self.high[rows], self.pages.offset[rows], self.pages.key[rows])

    def _before_a_write(self, rows: NDArray[np.intp]) -> None:
        """Pages that have a bringer, which may have written to what an earlier one had brought with its window."""
        faults, own = self.faults, self.first[rows]
        for power in self.size.powers if len(rows) else ():
            begin, end, whole = reach(self._mapped(rows), power, self.resident, self.size)
            early, late, more = self._earlier(begin, end, rows, own)
            place = faults.place[self.second[rows]]
            early = np.where((faults.place[early] == place) & (faults.place[late] != place), late, early)
            earlier = (early >= 0) & whole
            earlier[earlier] = faults.time[early[earlier]] < faults.time[self.first[rows[earlier]]]
            third = (self.first[rows] != own) & (faults.place[early] != faults.place[self.first[rows]])
            third |= (faults.place[own] != faults.place[early]) & (faults.place[own] != place)  # it faulted again
            self.doubted[rows[earlier]] |= (more | third)[earlier]
            self.first[rows[earlier]] = early[earlier]

    def _earlier(
        self, first: NDArray[np.uint64], last: NDArray[np.uint64], rows: NDArray[np.intp], own: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
        """As _between(): the first fault and the last one of another place, and whether there are more places.

        Where all faults are of one place, those behind the page's own are among them, and the answer is one for
        neighbours; where they are not, each page is asked for up to its own.
        """
        faults = self.faults
        early, late, _, more = self._between(first, last, self.life[rows], rows)
        apart = (faults.place[early] != faults.place[own]) | (faults.place[late] != faults.place[own])
        asked = np.flatnonzero((early >= 0) & apart)
        for part in np.split(asked, np.arange(_AT_ONCE, len(asked), _AT_ONCE)):
            since = self.losses.time[self.life[rows[part]]]
            early[part], late[part], _, more[part] = faults.between(
                first[part], last[part], since, faults.time[own[part]]
            )
        return early, late, more

    def _between(
        self, first: NDArray[np.uint64], last: NDArray[np.uint64], life: NDArray[np.intp], rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_], NDArray[np.bool_]]:
        """Faults.between() in a life, asked once for neighbours that ask the same."""
        since, until = self.losses.time[life], self.time[rows]
        new = begins(first, last, since, until)
        asked = np.flatnonzero(new)
        early, late, several, more = self.faults.between(first[asked], last[asked], since[asked], until[asked])
        which = np.cumsum(new) - 1
        return early[which], late[which], several[which], more[which]

    def _bring(self, rows: NDArray[np.intp], first: NDArray[np.intp], second: NDArray[np.intp], how: int) -> None:
        self.first[rows], self.second[rows], self.how[rows] = first, second, how

    def _back(self, rows: NDArray[np.intp], life: NDArray[np.intp]) -> NDArray[np.intp]:
        """Takes pages to the life before, where it is known. Returns those that are not at their end."""
        losses, event = self.losses, self.losses.event(life)
        arrived = losses.arrived[life]
        forked = np.isin(event, FORKS)
        shared = event == LOSS_SHARES
        of_file = self.pages.file[rows]
        freed = (event == LOSS_LAZILY_FREED) | (np.isin(event, _OF_FILES) & ~of_file)  # what it wrote itself stays
        perhaps = (event == LOSS_PERHAPS) | ((event == LOSS_PERHAPS_UNMAPPED) & of_file)
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
                self._move_mapping(rows[which], loss)
        back = np.flatnonzero(going & ~shared)
        self.limit[rows[back]] = life[back] - 1 - arrived[back]
        self.time[rows[back]] = losses.time[life[back]]
        left: NDArray[np.intp] = rows[going]
        return left

    def _move_mapping(self, rows: NDArray[np.intp], loss: NDArray[np.intp]) -> None:
        """Takes the mappings of pages back to the place of a move, where they were moved from their beginning on."""
        losses = self.losses.rows
        length = losses.end[loss] - losses.start[loss]
        as_one = (self.low[rows] == losses.to[loss]) & (self.high[rows] >= losses.to[loss] + length)
        self.low[rows] = np.where(as_one, losses.start[loss], 0)
        self.high[rows] = np.where(as_one, losses.start[loss] + length, 0)
        self.moved[rows] = True


def _others(rows: NDArray[np.intp], at: NDArray[np.intp]) -> NDArray[np.intp]:
    """The places in rows that are not among `at`."""
    left = np.ones(len(rows), np.bool_)
    left[at] = False
    return np.flatnonzero(left)
