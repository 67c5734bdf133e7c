"""Losses: what took content away from addresses, and since when that of an address has been there."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import begins, distinct
from wstrace.schema import LOSS_FORKED, LOSS_MOVED, LOSS_PERHAPS_FORKED

Numbers = NDArray[np.intp]
#: the events that are a fork, as far as is known
FORKS = (LOSS_FORKED, LOSS_PERHAPS_FORKED)

#: A page of a process is one number: the number of its space (see Spaces) above PAGE_BITS, the page's own below.
PAGE_BITS = 45
#: No process has a page from here on.
LAST_PAGE = np.uint64((1 << PAGE_BITS) - 1)
_SHIFT = np.uint64(PAGE_BITS)
_RANK = np.uint64(32)
#: Pages that are looked up together: of a million, all at once take 100 MB.
_AT_ONCE = 1 << 16


def key_of(spaces: NDArray[Any], pages: NDArray[Any]) -> NDArray[np.uint64]:
    """The keys of pages of spaces, u64, shape (n,)."""
    return spaces.astype(np.uint64) << _SHIFT | np.minimum(pages.astype(np.uint64), LAST_PAGE)


def space_of(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The space of each key."""
    return keys >> _SHIFT


def page_of(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The page of each key."""
    return keys & LAST_PAGE


class LossRows(NamedTuple):
    """Losses in order of time, each an array of shape (n,); pages are numbers of pages, the end is exclusive."""

    time: NDArray[np.uint64]
    space: Numbers
    event: NDArray[np.uint8]
    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    to: NDArray[np.uint64]
    #: the space that a forked or sharing one began with
    other: Numbers

    @property
    def are_forks(self) -> NDArray[np.bool_]:
        """Which of them are the fork with which a process began."""
        return np.isin(self.event, FORKS)

    def take(self, rows: NDArray[np.bool_]) -> LossRows:
        """Those of a mask."""
        columns: Any = self
        return LossRows(*(column[rows] for column in columns))


class Losses:
    """Answers what was the last that happened to the content of a page before a time.

    What happened are ranges, numbered from 1 in order of time; 0 = nothing. A move has two: the one that it left, and
    the one where its content arrived. A query takes O(log n): the ranges are the nodes of a segment tree.
    row: of each range, the row of `rows`; -1 of 0. arrived: of each range, whether the content of a move arrived there.
    time: of each range, ns; 0 of 0. rows: the losses.
    """

    def __init__(self, rows: LossRows) -> None:
        self.rows = rows
        moved = np.flatnonzero(rows.event == LOSS_MOVED)
        row = np.concatenate((np.arange(len(rows.time)), moved))
        order = np.argsort(row, kind="stable")
        arrived = np.concatenate((np.zeros(len(rows.time), np.bool_), np.ones(len(moved), np.bool_)))[order]
        row = row[order]
        first = np.where(arrived, rows.to[row], rows.start[row])
        last = first + (rows.end[row] - rows.start[row])
        self.row = np.concatenate((np.full(1, -1), row)).astype(np.intp)
        self.arrived = np.concatenate((np.zeros(1, np.bool_), arrived))
        self.time = np.concatenate((np.zeros(1, np.uint64), rows.time[row]))
        self._events = np.concatenate((np.zeros(1, np.uint8), rows.event[row]))
        self.first, self.last = key_of(rows.space[row], first), key_of(rows.space[row], last)
        self._build()

    def __len__(self) -> int:
        return len(self.row) - 1

    def upto(self, times: NDArray[np.uint64]) -> Numbers:
        """The number of ranges up to each time, inclusive: what latest() takes as its limit."""
        return self.time[1:].searchsorted(times, "right")

    def event(self, ranges: Numbers) -> NDArray[np.uint8]:
        """The event of each range; 0 of 0."""
        return self._events[ranges]

    def are_forks(self, ranges: Numbers) -> NDArray[np.bool_]:
        """Which ranges are the fork with which a process began."""
        return np.isin(self._events[ranges], FORKS)

    def forks(self) -> Numbers:
        """The ranges that are forks."""
        return np.flatnonzero(np.isin(self._events, FORKS))

    def _build(self) -> None:
        """Gives each range, by its number, to the nodes of the tree that it covers whole: two a level at most."""
        self._bounds = distinct(np.concatenate((self.first, self.last)))
        self._size = 1 << max(len(self._bounds) - 1, 1).bit_length()
        left = self._bounds.searchsorted(self.first).astype(np.int64) + self._size
        right = self._bounds.searchsorted(self.last).astype(np.int64) + self._size
        number = np.arange(1, len(self.first) + 1)
        nodes, numbers = [], []
        while len(number):
            odd = (left & 1).astype(np.bool_) & (left < right)
            nodes.append(left[odd])
            numbers.append(number[odd])
            left = left + odd
            odd = (right & 1).astype(np.bool_) & (left < right)
            right = right - odd
            nodes.append(right[odd])
            numbers.append(number[odd])
            left, right = left >> 1, right >> 1
            going = left < right
            left, right, number = left[going], right[going], number[going]
        node = np.concatenate(nodes or [np.zeros(0, np.int64)]).astype(np.uint64)
        what = np.concatenate(numbers or [np.zeros(0, np.int64)]).astype(np.uint64)
        self._entries = np.sort(node << _RANK | what)
        self._has = np.zeros(2 * self._size, np.bool_)
        self._has[node.astype(np.intp)] = True

    def latest(self, keys: NDArray[np.uint64], limits: Numbers) -> Numbers:
        """The last range that covers each page, of those up to its limit; 0 = none. Shape (n,).

        keys: pages, u64; ascending ones are found fastest. limits: see upto().
        """
        if not len(self) or not len(keys):
            return np.zeros(len(keys), np.intp)
        if len(keys) > _AT_ONCE:
            parts = range(0, len(keys), _AT_ONCE)
            return np.concatenate([self.latest(keys[at : at + _AT_ONCE], limits[at : at + _AT_ONCE]) for at in parts])
        cell = self._bounds.searchsorted(keys, "right") - 1
        new = begins(cell, limits)  # equal neighbours are searched once
        first_of = np.flatnonzero(new)
        if 2 * len(first_of) > len(keys):
            return self._latest(cell, limits)
        return self._latest(cell[first_of], limits[first_of]).repeat(np.diff(first_of, append=len(keys)))

    def _latest(self, cell: Numbers, limits: Numbers) -> Numbers:
        """The last range up to each limit that covers each cell."""
        found = np.zeros(len(cell), np.intp)
        inside = np.flatnonzero(cell >= 0)
        node = cell[inside] + self._size
        while len(node) and node[0] > 0:
            has = np.flatnonzero(self._has[node])
            if len(has):
                rows = inside[has]
                wanted = node[has].astype(np.uint64) << _RANK | limits[rows].astype(np.uint64)
                at = self._entries.searchsorted(wanted, "right") - 1
                entry = self._entries[at]
                own = (at >= 0) & (entry >> _RANK == node[has].astype(np.uint64))
                rows, entry = rows[own], entry[own]
                found[rows] = np.maximum(found[rows], (entry & np.uint64(0xFFFFFFFF)).astype(np.intp))
            node = node >> 1
        return found
