"""Unshared: the pages that processes copied, which they had shared since a fork, and whose writes did it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.blame.ending import at_the_end
from wstrace.analysis.blame.rows import Blame, BlameRow
from wstrace.analysis.faults import FORKS
from wstrace.analysis.losses import space_of

_NEVER = np.iinfo(np.uint64).max


class ForkRow:
    """A fork: the child and its parent, and the bytes that either of them copied of what it shared, and when it was.

    at_the_end: those of the bytes that an ending interpreter copied.
    """

    def __init__(self, child: str, parent: str, pid: int, time_ns: int, n_bytes: int, at_the_end: int) -> None:
        self.child, self.parent, self.pid, self.time_ns = child, parent, pid, time_ns
        self.n_bytes, self.at_the_end = n_bytes, at_the_end


class Unshared:
    """The copies of shared pages in a trace.

    A copy is a fault that made one more page: of k processes that hold a page at most k - 1 copy it, because the last
    one takes it over. So the sum is what the copies cost in memory, and not the number of writes.

    Args:
        blame: the trace's composition; the snapshots that it read tell of pages that no fault was on. Its threads
            tell what was copied by interpreters that ended.

    Attributes:
        copies: faults, as places in the history's faults.
        pages: of each how many copies it stands for; more than itself where one of several faults was recorded.
    """

    def __init__(self, blame: Blame) -> None:
        self.blame = blame
        self.of = blame.of
        self.copies = self.of.history.copies.faults
        self._fork = self.of.history.copies.fork
        #: Whether all numbers are estimates: one of several faults was recorded, and stands for the others.
        self.estimated = self.of.sampled > 1
        each = self.of.inputs.faults.get("sampled")
        self._rows = self.of.history.faults.order[self.copies]
        self.pages = np.ones(len(self.copies), np.intp) if each is None else each[self._rows].astype(np.intp)

    @property
    def total(self) -> int:
        """Bytes that were copied."""
        return int(self.pages.sum()) * self.of.page_size

    def by(self, *views: str) -> tuple[NDArray[np.intp], list[BlameRow]]:
        """Of each copy the number of its label by these views together, and the labels as empty rows."""
        by_fault, labels = self.blame.labels_of_faults(*views)
        return by_fault[self._rows], labels

    def rows(self, *views: str) -> list[tuple[BlameRow, int]]:
        """(row, bytes copied) by these views together, largest first."""
        label, labels = self.by(*views)
        pages = np.bincount(label, self.pages, len(labels))
        found = [(row, int(n) * self.of.page_size) for row, n in zip(labels, pages.tolist(), strict=True) if n]
        return sorted(found, key=lambda one: (-one[1], one[0].whole))

    def rows_apart(self, *views: str) -> list[tuple[BlameRow, int, int]]:
        """(row, bytes copied while processes ran, bytes copied as they ended), in the order of the former."""
        label, labels = self.by(*views)
        both = [np.bincount(label, self.pages * own, len(labels)).astype(np.intp) * self.of.page_size
                for own in (~self._end[0], self._end[0])]  # fmt: skip
        found = [(row, *each) for row, *each in zip(labels, *(n.tolist() for n in both), strict=True) if any(each)]
        return sorted(found, key=lambda one: (-one[1], -one[2], one[0].whole))

    @cached_property
    def _end(self) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
        """Of each copy, whether an ending interpreter made it; the spaces of the processes of which that is known."""
        found, known = at_the_end(self.of.inputs)
        return found[self._rows], known

    @property
    def at_the_end(self) -> int:
        """Bytes that ending interpreters copied, of the total."""
        return int(self.pages[self._end[0]].sum()) * self.of.page_size

    @property
    def ending(self) -> int:
        """The number of processes that copied these."""
        return len(np.unique(space_of(self.of.history.faults.key[self.copies[self._end[0]]])))

    def forks(self) -> list[ForkRow]:
        """Each fork with copies, the largest first."""
        losses = self.of.history.losses
        ranges, of = np.unique(self._fork, return_inverse=True)
        found = []
        both = (np.bincount(of, pages).astype(np.intp) for pages in (self.pages, self.pages * self._end[0]))
        for fork, n, end in zip(ranges.tolist(), *(each.tolist() for each in both), strict=True):
            row = losses.row[fork]
            child, parent = int(losses.rows.space[row]), int(losses.rows.other[row])
            names = self.of.name_of(child), self.of.name_of(parent)
            pid, time = int(self.of.inputs.pids[child]), int(losses.time[fork])
            found.append(ForkRow(*names, pid, time, n * self.of.page_size, end * self.of.page_size))
        return sorted(found, key=lambda one: (-one.n_bytes, one.time_ns))

    @property
    def forked(self) -> int:
        """The number of forks whose memory was copied; vfork and threads share theirs and are none."""
        events: NDArray[np.intp] = np.unique(self._fork)
        return len(events)

    @property
    def ended(self) -> bool:
        """Whether what a process copied as it ended is among the copies that it made while it ran.

        It is where the process has ended in the trace, and its end is not told apart.
        """
        copied_in = space_of(self.of.history.faults.key[self.copies])
        return bool(np.isin(copied_in, np.setdiff1d(self.of.inputs.ends.space, self._end[1])).any())

    @property
    def earlier(self) -> bool:
        """Whether no process forked in the trace, and some were there before it: an earlier fork may have been."""
        of = self.of
        forks = np.isin(of.inputs.losses.event, FORKS).any()
        return not forks and bool(np.setdiff1d(of.inputs.faults["space"], of.inputs.began).size)

    @cached_property
    def unseen(self) -> list[int]:
        """The processes that were there before the trace and forked, and of which no snapshot tells what they had.

        Only those are meant of which a fault after the fork, by them or by a child, may have copied a page.
        """
        faults, losses, inputs = self.of.history.faults, self.of.history.losses, self.of.inputs
        forks = np.flatnonzero(np.isin(losses.event(np.arange(len(losses) + 1)), FORKS))
        rows = losses.row[forks]
        of_child, of_parent = losses.rows.space[rows], losses.rows.other[rows]
        parents = np.setdiff1d(of_parent, np.concatenate((inputs.began, of_child)))
        asked = self.of.past.copyable[faults.order]
        asked[self.copies] = False
        space = space_of(faults.key).astype(np.intp)
        found = []
        for parent in parents.tolist():
            since = losses.time[forks[of_parent == parent]].min()
            seen = inputs.before["time"][inputs.before["space"] == parent].min(initial=_NEVER)
            own = (space == parent) & (faults.life == 0) & (faults.time >= since) & (faults.time < seen)
            of_children = np.isin(space, of_child[of_parent == parent]) & faults.forked & (seen == _NEVER)
            found += [parent] * bool((asked & faults.brings & (own | of_children)).any())
        return found

    @property
    def at_least(self) -> bool:
        """Whether more may have been copied: what had been in memory without a fault in the trace is not known."""
        return bool(self.unseen) or self.earlier or self.of.history.unproven > 0

    def as_dict(self, by: Sequence[str]) -> dict[str, Any]:
        """For JSON: `schema` 1; rows sum to the total."""
        of, size = self.of, self.of.page_size
        keys = ("file", "line", "function", "package", "kind")
        return {
            "schema": 1,
            "by": list(by),
            "complete": of.complete,
            "lost": of.lost,
            "assumed": of.assumed,
            "at_least": self.at_least,
            "estimated": self.estimated,
            "total": {"bytes": self.total, "pages": self.total // size, "at_the_end": self.at_the_end},
            "forks": [
                {"pid": fork.pid, "child": fork.child, "parent": fork.parent, "time_ns": fork.time_ns,
                 "bytes": fork.n_bytes, "pages": fork.n_bytes // size, "at_the_end": fork.at_the_end}
                for fork in self.forks()
            ],
            "rows": [
                {"label": row.whole, "bytes": n + end, "pages": (n + end) // size, "at_the_end": end,
                 **{key: getattr(row, key) for key in keys}}
                for row, n, end in self.rows_apart(*by)
            ],
        }  # fmt: skip
