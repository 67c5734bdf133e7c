"""History: the faults and losses of all processes together, from which the bringers of pages are found."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.bringers import Found, PageRows, bringers
from wstrace.analysis.blame.faults import FORKS, FaultRows, Faults
from wstrace.analysis.blame.losses import Losses, LossRows, key_of, page_of, space_of
from wstrace.analysis.blame.sharing import Copies, Ends, Held, sharing
from wstrace.analysis.blame.unfaulted import GENERATIONS, Unfaulted, asked
from wstrace.analysis.blame.windows import PageSize


class History:
    """What is known of all faults of a trace, whoever asks.

    Args:
        rows: the faults. copyable: of each, whether a write to its page by one process leaves it to the others.
        losses: what took content away.
        ends: when the memory of processes ended.
        before: keys of pages that were there before the trace, ascending, and the times of the snapshots that tell it.
        seen: parts of the pages that a snapshot showed: those without a fault were there nevertheless.
        size: of a page, and of what one fault maps around it.
        lossless: whether no record of a fault or of a move was lost. sampled: whether only one of several was made.
        unrecorded: of each fault the time of its mapping, where the kernel also took faults of which it makes no
            record, as for direct I/O; None = it took none.

    Attributes:
        faults, losses: see there.
        copies: the faults that copied a page that processes shared.
        perhaps_copied: how many more did so at most: those of pages that came with a huge page if there was one,
            which no record tells.
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
        lossless: bool = False,
        sampled: bool = False,
        unrecorded: NDArray[np.uint64] | None = None,
    ) -> None:
        self._lossless, self._sampled, self._size = lossless, sampled, size
        self.losses = Losses(losses, size.size)
        self.faults = Faults(rows, self.losses)
        self.faults.ready()
        of_snapshots = [self._seen(one) for one in seen]
        shown = Held(*(np.concatenate(columns) for columns in zip(*of_snapshots, strict=True)))
        unfaulted = self._unfaulted(shown, before[0])
        held = [shown, self._before(*before), self._moved(), self._inherited(), unfaulted.held]
        together = Held(*(np.concatenate(columns) for columns in zip(*held, strict=True)))
        self.copies: Copies = sharing(self.faults, self.losses, copyable[self.faults.order], together, ends)
        taken = self.copies.taken
        self.faults.does_not_bring(taken[self.faults.forked[taken]])
        self.perhaps_copied = 0
        if len(unfaulted.perhaps.key):
            most = Held(*(np.concatenate(columns) for columns in zip(together, unfaulted.perhaps, strict=True)))
            found = sharing(self.faults, self.losses, copyable[self.faults.order], most, ends)
            self.perhaps_copied = max(len(found.faults) - len(self.copies.faults), 0)
        self.faults.ready()
        self._perhaps_there = None if unrecorded is None else self._first_behind_a_fork(unrecorded)

    def bringers(self, pages: PageRows, resident: NDArray[np.uint64] | None = None) -> Found:
        """The fault that brought each of these pages; `resident`: the keys of all that are there, ascending."""
        found = bringers(pages, self.faults, self.losses, resident=resident, size=self._size,
                         lossless=self._lossless, sampled=self._sampled)  # fmt: skip
        if self._perhaps_there is not None:
            found.doubted[:] |= (found.first >= 0) & self._perhaps_there[found.first]
        return found

    def _first_behind_a_fork(self, mapped: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Faults of a parent that may have copied what came unrecorded before its fork, and brought nothing.

        A child's copy is its writer's in any case.
        """
        faults, losses = self.faults, self.losses
        there = np.zeros(len(faults), np.bool_)
        first = faults.first[faults.brings[faults.first] & faults.anonymous[faults.first]]
        since = np.maximum(faults.life[first], losses.upto(mapped[faults.order[first]]))
        there[first] = faults.forked_between(first, since, losses.upto(faults.time[first]))
        return there

    def loaders(self, pages: PageRows, found: Found) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Those of these pages that their bringer copied, and of each the fault that had loaded it, where it is known.

        A child's copy belongs to the line that wrote it; the line that loaded the content is given beside it.
        """
        faults, losses = self.faults, self.losses
        rows = np.flatnonzero(np.isin(found.first, self.copies.faults[faults.forked[self.copies.faults]]))
        life = faults.life[found.first[rows]]
        row = losses.row[life]
        source = key_of(losses.rows.other[row], page_of(faults.key[found.first[rows]]))
        order = np.argsort(source, kind="stable")
        asked = pages.take(rows[order])._replace(key=source[order], time=losses.time[life[order]])
        loader = bringers(asked, faults, losses, life[order] - 1, size=self._size).first
        return rows[order[loader >= 0]], loader[loader >= 0]

    def _held(self, keys: NDArray[np.uint64], lives: NDArray[np.intp]) -> Held:
        """Pages that were there since their lives began."""
        return Held(keys, lives, self.losses.time[lives])

    def _seen(self, seen: PageRows) -> Held:
        """Pages of a snapshot that no fault in their life was on, of processes that forked or began by that."""
        seen = seen.take(np.flatnonzero(np.isin(space_of(seen.key), self.faults.family)))
        life = self.losses.latest(seen.key, self.losses.upto(seen.time))
        without = ~seen.file & (self.faults.group_of(seen.key, life) < 0)
        return self._held(seen.key[without], life[without])

    def _unfaulted(self, shown: Held, before: NDArray[np.uint64]) -> Unfaulted:
        """Pages that a fork shared and that no fault of their own had brought."""
        order = np.argsort(shown.key, kind="stable")
        of = asked(self.faults, self.losses)
        shown = Held(shown.key[order], shown.life[order], shown.since[order])
        found = Unfaulted(of, self.faults, self.losses, self._size, shown, before, sampled=self._sampled)
        self.faults.does_not_bring(found.brought_nothing)
        return found

    def _before(self, keys: NDArray[np.uint64], times: NDArray[np.uint64]) -> Held:
        """Pages that were there before the trace; _seen() has those of the last snapshot that no fault was on."""
        faults, losses = self.faults, self.losses
        life = losses.latest(keys, losses.upto(times))
        gone = losses.latest(keys, np.full(len(keys), len(losses))) != 0
        group = np.where(life == 0, faults.group_of(keys, life), -1)
        # the first fault on such a page after a fork writes to what is there
        forks = np.flatnonzero(np.isin(losses.event(np.arange(len(losses) + 1)), FORKS))
        forked = np.full(int(losses.rows.other.max(initial=0)) + 1, np.iinfo(np.uint64).max, np.uint64)
        np.minimum.at(forked, losses.rows.other[losses.row[forks]], losses.time[forks])
        since = forked[space_of(keys).astype(np.intp)]
        asked = np.flatnonzero(group >= 0)
        first = faults.first[group[asked]]
        late = faults.time[first] >= np.maximum(since, times)[asked]
        faults.does_not_bring(first[late])
        group[asked[~late]] = -1  # it may have arrived by that fault
        there = (life == 0) & ((group >= 0) | gone)
        return self._held(keys[there], life[there])

    def _moved(self) -> Held:
        """Pages that had been moved when a fault came: that fault brought nothing."""
        faults = self.faults
        first = faults.first[self.losses.arrived[faults.life[faults.first]]]
        there = self._there(faults.key[first], faults.life[first])
        faults.does_not_bring(first[there])
        return self._held(faults.key[first[there]], faults.life[first[there]])

    def _inherited(self) -> Held:
        """Pages that had been moved when a process was forked that then faulted on them."""
        faults, losses = self.faults, self.losses
        first = faults.first[faults.forked[faults.first]]
        key, life = faults.key[first], faults.life[first]
        found = [self._held(np.zeros(0, np.uint64), np.zeros(0, np.intp))]
        for _ in range(GENERATIONS):
            forked = np.isin(losses.event(life), FORKS)
            key, life = key[forked], life[forked]
            if not len(key):
                break
            key = key_of(losses.rows.other[losses.row[life]], page_of(key))
            life = losses.latest(key, life - 1)
            without = faults.group_of(key, life) < 0
            key, life = key[without], life[without]
            moved = losses.arrived[life]
            there = self._there(key[moved], life[moved])
            found.append(self._held(key[moved][there], life[moved][there]))
        return Held(*(np.concatenate(columns) for columns in zip(*found, strict=True)))

    def _there(self, keys: NDArray[np.uint64], lives: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether pages that arrived by a move in these lives had been brought before it."""
        losses = self.losses
        row = losses.row[lives]
        page = page_of(keys) - losses.rows.to[row] + losses.rows.start[row]
        source = key_of(losses.rows.space[row], page)
        order = np.argsort(source, kind="stable")
        none, zero = np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.uint64)
        asked = PageRows(source[order], losses.time[lives[order]], none, none, zero, zero, zero, none, none)
        found = bringers(asked, self.faults, losses, lives[order] - 2, size=self._size)
        there = np.zeros(len(keys), np.bool_)
        there[order] = found.first >= 0
        return there
