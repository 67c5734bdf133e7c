"""Arrival: the owner of a page, which is the fault that made its content arrive. The rule:

1. A page belongs to the fault that made its content arrive since it was last lost (munmap, mmap over it, madvise, brk,
   exec).
2. A file page without a fault of its own belongs to the earliest fault in its window of 64 KiB, then in its folio of up
   to 2 MiB, marked ~; a page of a huge page to the fault that brought the huge page, also where it was split.
3. After a fork a page that the process itself had stays its owner's, also when that process rewrites it; a page still
   shared is the parent's owner's.
4. A child's copy is the copying fault's, and is counted in `copied`: of k holders k - 1 copies count.
5. A private file page that is written belongs to the writer; a move (mremap) takes the pages along.
6. All else is `(not known)`, with its reason: before the trace, no fault, records lost.

~ marks an estimate: a rule and not a record decided. Records do not show everything: whether a fault read or wrote, or
what the kernel took away by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace import schema
from wstrace.analysis.copies import Copies, Ends, Held, sharing
from wstrace.analysis.faults import OF_FILES, FaultRows, Faults
from wstrace.analysis.losses import FORKS, Losses, LossRows, Numbers, key_of, page_of, space_of

#: Why the owner of a page is not known; values of `Owners.reason`.
REASONS = ("", "before the trace", "no fault", "records lost")
KNOWN, BEFORE, NO_FAULT, RECORDS_LOST = range(len(REASONS))

#: After these a page may be there as it was, or have come again: the owner is an estimate.
_PERHAPS = (schema.LOSS_LAZILY_FREED, schema.LOSS_PERHAPS, schema.LOSS_PERHAPS_FORKED, schema.LOSS_POPULATED)
#: What leaves the page cache: a later fault on a page of a file owns it anyway.
_OF_THE_CACHE = (schema.LOSS_EVICTED, schema.LOSS_PERHAPS_UNMAPPED)
#: Moves and forks that are followed back.
_MOST_STEPS = 64
#: The bytes that a read fault maps around its page, unless the trace has what an administrator set.
_AROUND = 1 << 16
#: The name under which TraceInfo.extra has it.
FAULT_AROUND = "fault_around_bytes"


class PageSize:
    """What follows from the size of a page in bytes: how many lie in a window and in a huge page, as powers of 2."""

    def __init__(self, size: int = 4096, around: int = 0) -> None:
        bits = size.bit_length() - 1
        self.size, self.table = size, max(bits - 3, 0)
        self.window = min(max((around or _AROUND).bit_length() - 1 - bits, 0), self.table)

    @classmethod
    def of(cls, size: int, extra: Mapping[str, object]) -> PageSize:
        """The one of a trace with that TraceInfo.extra, which a file may have from anywhere."""
        around = extra.get(FAULT_AROUND)
        return cls(size, around if isinstance(around, int) and 0 < around < 1 << 40 else 0)


class PageRows(NamedTuple):
    """Resident pages in ascending order of key, each an array of shape (n,).

    file: whether it is a page of a file or of shared memory. low, high: the first page of its mapping and the one past
    it; offset: of the first, in pages of the file; all 0 where not known. noticed: whether a first write faults even
    where the page is there, as in shared mappings of files that are written back.
    """

    key: NDArray[np.uint64]
    time: NDArray[np.uint64]
    file: NDArray[np.bool_]
    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    offset: NDArray[np.uint64]
    noticed: NDArray[np.bool_]

    def take(self, rows: Numbers) -> PageRows:
        """Those of these places."""
        columns: Any = self
        return PageRows(*(column[rows] for column in columns))


def pages_at(keys: NDArray[np.uint64], times: NDArray[np.uint64]) -> PageRows:
    """Pages at times of which nothing else is known; they are taken for anonymous ones."""
    none, zero = np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.uint64)
    return PageRows(keys, times, none, zero, zero, zero, none)


class Owners(NamedTuple):
    """The owners of pages, each an array of shape (n,).

    fault: a place in Faults, -1 = not known. estimated: whether a rule and not a record decided. reason: index of
    REASONS.
    """

    fault: NDArray[np.int32]
    estimated: NDArray[np.bool_]
    reason: NDArray[np.uint8]


def owners(
    pages: PageRows, faults: Faults, losses: Losses, size: PageSize, limits: Numbers | None = None
) -> tuple[Owners, Numbers]:
    """The owner of each page at its time, and the last life that was looked at, 0 = the one before all losses.

    limits: the ranges of the losses that count for each page; None = those up to its time.
    """
    walk = _Walk(pages, faults, losses, size, losses.upto(pages.time) if limits is None else limits.copy())
    rows = np.arange(len(pages.key))
    for _ in range(_MOST_STEPS):
        if not len(rows):
            break
        rows = walk.step(rows)
    reason = np.where(walk.fault >= 0, np.uint8(KNOWN), np.uint8(NO_FAULT))
    return Owners(walk.fault, walk.estimated & (walk.fault >= 0), reason), walk.life


class _Walk:
    """The pages without an owner yet, each at the place and time up to which its way back has come."""

    def __init__(self, pages: PageRows, faults: Faults, losses: Losses, size: PageSize, limit: Numbers) -> None:
        self._pages, self._faults, self._losses, self._size, self._limit = pages, faults, losses, size, limit
        n = len(pages.key)
        self.fault, self.life = np.full(n, -1, np.int32), np.zeros(n, np.intp)
        self.estimated = np.zeros(n, np.bool_)
        self._key, self._time = pages.key.copy(), pages.time.copy()
        self._low, self._high = pages.low.copy(), pages.high.copy()

    def step(self, rows: Numbers) -> Numbers:
        """Looks at the lives in which these pages are; returns those that go on to the life before."""
        life = self._losses.latest(self._key[rows], self._limit[rows])
        self.life[rows] = life
        event = self._losses.event(life)
        self.estimated[rows] |= np.isin(event, _PERHAPS)
        for way in (self._own, self._huge, self._around):
            left = way(rows, life)
            rows, life, event = rows[left], life[left], event[left]
        return self._back(rows, life, event)

    def _own(self, rows: Numbers, life: Numbers) -> NDArray[np.bool_]:
        """Gives pages to the fault on them in this life; returns which have none."""
        faults = self._faults
        group = faults.group_of(self._key[rows], life)
        at = np.flatnonzero(group >= 0)
        group, row = group[at], rows[at]
        last = faults.upto(group, self._time[row])
        fault = faults.bringer(group, last)
        first, file = faults.first[group], self._pages.file[row]
        of_file = np.isin(faults.kind[first], OF_FILES)
        several = of_file & (last > first)
        self.estimated[row] |= of_file & file & (several | self._pages.noticed[row])
        renewed = several & file & ~self._pages.noticed[row] & (faults.kind[first] == schema.KIND_FILE)
        fault[renewed] = last[renewed]
        written = np.flatnonzero(several & ~file)
        parted = faults.parted(first[written])
        self.estimated[row[written[parted]]] = True
        fault[written] = first[written] + ~parted
        known = fault >= 0
        self.estimated[row] |= faults.twice[np.where(known, fault, first)]
        self.fault[row] = fault
        left = np.ones(len(rows), np.bool_)
        left[at[known]] = False
        return left

    def _huge(self, rows: Numbers, life: Numbers) -> NDArray[np.bool_]:
        """Gives pages to the fault that brought the huge page around each; returns which have none."""
        faults, left = self._faults, ~self._pages.file[rows]
        others = ~left
        for span in faults.spans:
            at = np.flatnonzero(left)
            row = rows[at]
            low = self._key[row] >> span << span
            among = (faults.span == span) & (faults.brings | faults.split)
            since, until = self._losses.time[life[at]], self._time[row]
            fault = faults.earliest(low, low + (np.uint64(1) << span), since, until, among)
            known = fault >= 0
            self.fault[row[known]] = fault[known]
            self.estimated[row[known]] |= faults.twice[fault[known]]
            left[at[known]] = False
        return left | others

    def _around(self, rows: Numbers, life: Numbers) -> NDArray[np.bool_]:
        """Gives pages of files to the earliest fault in their window, then in their folio; returns which have none."""
        left = self._pages.file[rows] & (self._low[rows] <= page_of(self._key[rows]))
        left &= page_of(self._key[rows]) < self._high[rows]
        others = ~left
        for power in range(self._size.window, self._size.table + 1):
            at = np.flatnonzero(left)
            row = rows[at]
            page, space = page_of(self._key[row]), space_of(self._key[row])
            shift = self._pages.offset[row] - self._low[row] if power > self._size.window else np.uint64(0)
            low = ((page + shift) >> np.uint64(power) << np.uint64(power)) - shift
            high = np.minimum(low + np.uint64(1 << power), self._high[row])
            low = np.where(low > page, self._low[row], np.maximum(low, self._low[row]))  # wrapped below 0
            fault = self._faults.earliest(
                key_of(space, low), key_of(space, high), self._losses.time[life[at]], self._time[row]
            )
            known = fault >= 0
            self.fault[row[known]], self.estimated[row[known]] = fault[known], True
            left[at[known]] = False
        return left | others

    def _back(self, rows: Numbers, life: Numbers, event: NDArray[np.uint8]) -> Numbers:
        """Takes pages to the life before, where what they hold may be from; returns those."""
        losses = self._losses
        arrived = losses.arrived[life]
        forked, shared = np.isin(event, FORKS), event == schema.LOSS_SHARES
        moved = (event == schema.LOSS_MOVED) & arrived
        going = forked | shared | moved | np.isin(event, _PERHAPS)
        loss = losses.row[life]
        at = np.flatnonzero(forked | shared)
        self._key[rows[at]] = key_of(losses.rows.other[loss[at]], page_of(self._key[rows[at]]))
        at = np.flatnonzero(moved)
        row, loss = rows[at], loss[at]
        apart = losses.rows.start[loss] - losses.rows.to[loss]  # wraps around, as do the sums
        self._key[row] = key_of(losses.rows.space[loss], page_of(self._key[row]) + apart)
        self._low[row] = np.maximum(self._low[row] + apart, losses.rows.start[loss])
        self._high[row] = losses.rows.end[loss]
        back = np.flatnonzero(going & ~shared)
        self._limit[rows[back]] = life[back] - 1 - arrived[back]
        self._time[rows[back]] = losses.time[life[back]]
        found: Numbers = rows[going]
        return found


class History:
    """The faults and losses of all processes of a trace, and the owners of pages by them.

    Args:
        rows: the faults. copyable: of each, whether a write to its page by one process leaves it to the others.
        losses: what took content away. ends: when the memory of processes ended.
        before: keys of pages that were there before the trace, ascending, and the times of the snapshots with them.
        seen: parts of the pages of snapshots: those without a fault were there nevertheless.
        size: of a page. mapped: of each fault the time since which its page was mapped, where the kernel brought pages
            of which it made no record, as for direct I/O; None = it recorded all.

    Attributes:
        copies: the faults that copied a page that processes shared since a fork.
    """

    def __init__(
        self,
        rows: FaultRows,
        copyable: NDArray[np.bool_],
        losses: LossRows,
        ends: Ends,
        seen: Iterable[PageRows],
        before: tuple[NDArray[np.uint64], NDArray[np.uint64]],
        *,
        size: PageSize,
        mapped: NDArray[np.uint64] | None = None,
    ) -> None:
        self._size = size
        of_the_cache = np.isin(losses.event, _OF_THE_CACHE)
        self.losses, self._evicted = Losses(losses.take(~of_the_cache)), Losses(losses.take(of_the_cache))
        self.faults = Faults(rows, self.losses)
        held = [self._before(*before), *(self._seen(one) for one in seen), self._at_forks()]
        together = Held(*(np.concatenate(columns) for columns in zip(*held, strict=True)))
        self.copies: Copies = sharing(self.faults, self.losses, copyable[self.faults.order], together, ends)
        taken = np.sort(self.copies.taken)
        taken = taken[self.faults.forked[taken]]
        self.faults.brings[taken] = False
        self._perhaps_read(taken)
        # where the first fault behind a fork copied nothing, nothing was there: it may only have read
        explained = self.faults.explained
        self.faults.twice[explained[~np.isin(explained, np.append(self.copies.faults, taken))]] = True
        self.faults.twice[self._shared_elsewhere()] = True
        self._perhaps_there = np.zeros(len(self.faults), np.bool_)
        if mapped is not None:
            self._perhaps_there[self._behind_a_fork(mapped)] = True

    def owners(self, pages: PageRows, *, from_before: Callable[[Numbers], NDArray[np.bool_]], lossy: bool) -> Owners:
        """The owner of each page.

        from_before: of spaces, whether they or those that they descend from were there before the trace.
        lossy: whether records were lost.
        """
        found, life = owners(pages, self.faults, self.losses, self._size)
        evicted = self._evicted.latest(pages.key, self._evicted.upto(pages.time)) > 0
        found.estimated[:] |= evicted & (found.fault >= 0)
        known = np.flatnonzero(found.fault >= 0)
        found.estimated[known] |= self._perhaps_there[found.fault[known]]
        reason = found.reason
        unknown = np.flatnonzero(reason == NO_FAULT)
        old = (life[unknown] == 0) & from_before(space_of(pages.key[unknown]).astype(np.intp))
        reason[unknown] = np.where(old, BEFORE, RECORDS_LOST if lossy else NO_FAULT)
        # a page that came after the snapshot was begun, and before it was read: of the first fault since
        rows = unknown[~old]
        group = self.faults.group_of(pages.key[rows], life[rows])
        rows, group = rows[group >= 0], group[group >= 0]
        found.fault[rows], found.estimated[rows], reason[rows] = self.faults.first[group], True, KNOWN
        return found

    def loaders(self, pages: PageRows, found: Owners) -> tuple[Numbers, NDArray[np.int32]]:
        """Those of these pages that their owner copied from its parent, and of each its owner there, where known."""
        faults, losses = self.faults, self.losses
        rows = np.flatnonzero(np.isin(found.fault, self.copies.faults[faults.forked[self.copies.faults]]))
        fault = found.fault[rows]
        life = faults.life[fault]
        source = key_of(losses.rows.other[losses.row[life]], page_of(faults.key[fault]))
        order = np.argsort(source, kind="stable")
        chosen = pages.take(rows[order])._replace(key=source[order], time=losses.time[life[order]])
        loader = owners(chosen, faults, losses, self._size, life[order] - 1)[0].fault
        return rows[order[loader >= 0]], loader[loader >= 0]

    def _perhaps_read(self, taken: Numbers) -> None:
        """Marks what these faults found as perhaps only read: then they brought it, where nobody else has it."""
        faults = self.faults
        owner = owners(pages_at(faults.key[taken], faults.time[taken]), faults, self.losses, self._size)[0].fault
        faults.twice[owner[(owner >= 0) & (faults.place[owner] != faults.place[taken])]] = True

    def _shared_elsewhere(self) -> Numbers:
        """First faults since a fork on pages that some process has moved meanwhile: whether it has them still, so that
        the fault copied, is not followed.
        """
        faults, rows = self.faults, self.losses.rows
        moves = Losses(rows._replace(space=np.zeros_like(rows.space)).take(rows.event == schema.LOSS_MOVED))
        first: Numbers = faults.first[faults.forked[faults.first]]
        last = moves.latest(page_of(faults.key[first]), moves.upto(faults.time[first]))
        moved: Numbers = first[moves.time[last] > self.losses.time[faults.life[first]]]
        return moved

    def _behind_a_fork(self, mapped: NDArray[np.uint64]) -> Numbers:
        """The first faults of parents behind a fork on memory from before it: they may have copied what was there."""
        faults = self.faults
        first = faults.first[faults.brings[faults.first] & faults.anonymous[faults.first]]
        since = np.maximum(faults.life[first], self.losses.upto(mapped[faults.order[first]]))
        found: Numbers = first[faults.forked_since(first, since)]
        return found

    def _seen(self, seen: PageRows) -> Held:
        """Pages of a snapshot that no fault in their life was on, of processes that forked or began by that."""
        seen = seen.take(np.flatnonzero(~seen.file & np.isin(space_of(seen.key), self.faults.family)))
        life = self.losses.latest(seen.key, self.losses.upto(seen.time))
        own = (self.faults.group_of(seen.key, life) >= 0) | self.losses.are_forks(life)
        rest = np.flatnonzero(~own)
        without = rest[owners(seen.take(rest), self.faults, self.losses, self._size)[0].fault < 0]
        return self._held(seen.key[without], life[without])

    def _held(self, keys: NDArray[np.uint64], lives: Numbers) -> Held:
        """Pages that were there since their lives began."""
        return Held(keys, lives, self.losses.time[lives])

    def _before(self, keys: NDArray[np.uint64], times: NDArray[np.uint64]) -> Held:
        """Pages that were there before the trace: the first fault on one after a fork writes to what is there."""
        faults, losses = self.faults, self.losses
        life = losses.latest(keys, losses.upto(times))
        gone = losses.latest(keys, np.full(len(keys), len(losses))) != 0
        group = np.where(life == 0, faults.group_of(keys, life), -1)
        forks = losses.forks()
        forked = np.full(int(losses.rows.other.max(initial=0)) + 1, np.iinfo(np.uint64).max, np.uint64)
        np.minimum.at(forked, losses.rows.other[losses.row[forks]], losses.time[forks])
        since = forked[space_of(keys).astype(np.intp)]
        chosen = np.flatnonzero(group >= 0)
        first = faults.first[group[chosen]]
        late = faults.time[first] >= np.maximum(since, times)[chosen]
        faults.brings[first[late]] = False
        group[chosen[~late]] = -1  # it may have arrived by that fault
        there = (life == 0) & ((group >= 0) | gone)
        return self._held(keys[there], life[there])

    def _at_forks(self) -> Held:
        """Pages without a fault that were there when a fork shared them: moved, of a huge page, or written by an exec.

        The first fault on such a page behind the fork, or the move, writes to what is there.
        """
        faults, losses = self.faults, self.losses
        if not len(faults.family) and not losses.arrived.any():
            return self._held(np.zeros(0, np.uint64), np.zeros(0, np.intp))
        first = faults.first[faults.anonymous[faults.first] | losses.arrived[faults.life[faults.first]]]
        life = faults.life[first]
        first = first[losses.arrived[life] | faults.forked[first] | np.isin(space_of(faults.key[first]), faults.family)]
        key, life, fault = faults.key[first], faults.life[first], first
        moved = losses.arrived[life]
        parents = faults.forks_of_parents
        process = space_of(key) << np.uint64(32)
        at = parents.searchsorted(process | life.astype(np.uint64), "right")
        fork = np.append(parents, np.uint64((1 << 64) - 1))[at]
        range_of = (fork & np.uint64(0xFFFFFFFF)).astype(np.intp)
        behind = (fork >> np.uint64(32) == process >> np.uint64(32)) & ~faults.forked[first]
        behind[behind] &= losses.time[range_of[behind]] <= faults.time[first[behind]]
        until = faults.time[first] - np.uint64(1)
        until[behind] = losses.time[range_of[behind]]
        chosen = moved | behind
        found = [self._there(key[chosen], life[chosen], until[chosen], fault[chosen])]
        of_children = faults.forked[first]
        key, life, fault = key[of_children], life[of_children], fault[of_children]
        for _ in range(_MOST_STEPS):
            if not len(key):
                break
            until = losses.time[life]
            key = key_of(losses.rows.other[losses.row[life]], page_of(key))
            life = losses.latest(key, life - 1)
            without = faults.group_of(key, life) < 0
            forked = losses.are_forks(life)
            ends, going = without & ~forked, without & forked
            found.append(self._there(key[ends], life[ends], until[ends], fault[ends]))
            key, life, fault = key[going], life[going], fault[going]
        return Held(*(np.concatenate(columns) for columns in zip(*found, strict=True)))

    def _there(self, keys: NDArray[np.uint64], lives: Numbers, until: NDArray[np.uint64], fault: Numbers) -> Held:
        """Those of these pages that were there until then; the faults on them brought nothing."""
        faults, losses = self.faults, self.losses
        order = np.argsort(keys, kind="stable")
        keys, lives, until, fault = keys[order], lives[order], until[order], fault[order]
        found, _ = owners(pages_at(keys, until), faults, losses, self._size)
        owner = found.fault
        there = faults.anonymous[fault] & (owner >= 0) & ~found.estimated
        there |= self._of_exec(keys, lives, fault) | (losses.event(lives) == schema.LOSS_POPULATED)
        own = np.flatnonzero(faults.key[fault] == keys)
        last, first = fault[own], owner[own]
        # a page that was only moved takes no fault: the first one read, and mapped the page of zeros or of the file
        moved = losses.arrived[faults.life[last]] & (first >= 0) & ~faults.swapped_in[last]
        faults.twice[last[moved & (faults.place[first] != faults.place[last])]] = True
        alone = space_of(faults.key[first]) == space_of(faults.key[last])
        alone &= ~faults.forked_since(last, losses.upto(faults.time[first]))
        moved &= alone | (faults.span[last] > 0)  # whoever copies gets no huge page
        faults.brings[last[there[own] & ~moved]] = False
        since = losses.time[lives]
        since[owner >= 0] = np.maximum(since[owner >= 0], faults.time[owner[owner >= 0]])
        return Held(keys[there], lives[there], since[there])

    def _of_exec(self, keys: NDArray[np.uint64], lives: Numbers, fault: Numbers) -> NDArray[np.bool_]:
        """Pages of a stack above the first one that was faulted on: the exec wrote arguments and environment there.

        It does so without a fault, and the program begins below (get_arg_page() in fs/exec.c, create_elf_tables()).
        """
        faults, losses = self.faults, self.losses
        there = np.zeros(len(keys), np.bool_)
        rows = np.flatnonzero((faults.kind[fault] == schema.KIND_STACK) & (losses.event(lives) == schema.LOSS_EXECUTED))
        of_stack = np.flatnonzero(
            (faults.kind == schema.KIND_STACK) & (losses.event(faults.life) == schema.LOSS_EXECUTED)
        )
        if not len(rows) or not len(of_stack):
            return there
        order = of_stack[np.lexsort((faults.time[of_stack], faults.life[of_stack]))]
        known, at = np.unique(faults.life[order], return_index=True)
        begun = page_of(faults.key[order[at]])
        place = np.minimum(known.searchsorted(lives[rows]), len(known) - 1)
        there[rows] = (known[place] == lives[rows]) & (page_of(keys[rows]) > begun[place])
        return there
