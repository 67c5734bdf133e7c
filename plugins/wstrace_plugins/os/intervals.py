"""Ranges of addresses: how sorted, disjoint ones lie in others; what was laid where, the newest on top."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")
#: sorted and disjoint: from start up to, not including, end; u64, shape (n,)
Ranges = tuple["NDArray[Any]", "NDArray[Any]"]


def n_bytes(ranges: Ranges) -> int:
    """The length of ranges together."""
    return int((ranges[1] - ranges[0]).sum())


def overlap(
    start: NDArray[Any], end: NDArray[Any], other_start: NDArray[Any], other_end: NDArray[Any]
) -> NDArray[np.int64]:
    """The bytes of each range [start, end) that the other ranges (sorted, disjoint) cover, shape (n,)."""
    if not len(other_start):
        return np.zeros(len(start), np.int64)
    lengths = np.r_[0, np.cumsum((other_end - other_start).astype(np.int64))]

    def below(address: NDArray[Any]) -> NDArray[np.int64]:
        at = np.searchsorted(other_start, address, "right") - 1
        inside = np.minimum(address, other_end[at]) - np.minimum(other_start[at], address)
        return np.where(at < 0, 0, lengths[at] + inside.astype(np.int64))

    return below(end) - below(start)


def union(start: NDArray[Any], end: NDArray[Any]) -> Ranges:
    """What any of these ranges (u64, in any order) covers: starts and ends, sorted, with touching ones joined."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.r_[True, start[1:] > end[:-1]][: len(start)]
    return start[first], end[np.r_[first[1:], True][: len(end)]]


def cut(
    start: NDArray[Any], end: NDArray[Any], borders: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """The ranges, split at the borders (u64, sorted) inside them: starts, ends, and the index of each one's range."""
    first = np.searchsorted(borders, start, "right")
    count = np.searchsorted(borders, end, "left") - first + 1
    each = np.repeat(np.arange(len(start)), count)
    part = np.arange(len(each)) - np.repeat(np.cumsum(count) - count, count)
    padded = np.r_[borders, np.uint64(0)]
    low = np.where(part == 0, start[each], padded[first[each] + part - 1])
    high = np.where(part == count[each] - 1, end[each], padded[np.minimum(first[each] + part, len(borders))])
    return low, high, each


def without(
    start: NDArray[Any], end: NDArray[Any], other_start: NDArray[Any], other_end: NDArray[Any], *, covered: bool = False
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """The parts of the ranges that the others (sorted, disjoint) do not cover: starts, ends, index of the range.

    start, end: the ranges. covered: those that they do cover.
    """
    borders = np.column_stack(
        (other_start, other_end)
    ).ravel()  # ascending; np.union1d imports numpy.ma, which takes 12 ms
    low, high, each = cut(start, end, borders[np.r_[True, borders[1:] != borders[:-1]][: len(borders)]])
    kept = (overlap(low, high, other_start, other_end) > 0) == covered
    return low[kept], high[kept], each[kept]


def within(
    start: NDArray[Any], end: NDArray[Any], other_start: NDArray[Any], other_end: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """The parts of the ranges that the others (sorted, disjoint) cover: starts, ends, index of the range."""
    return without(start, end, other_start, other_end, covered=True)


class Pieces(Generic[T]):
    """What lies where: pieces in order of address, none over another; what is put later covers what was there.

    starts, ends, values: of the pieces, each sorted by address.
    """

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.values: list[T] = []

    def __len__(self) -> int:
        return len(self.starts)

    def copy(self) -> Pieces[T]:
        """Another one with the same pieces."""
        other = Pieces[T]()
        other.starts, other.ends, other.values = self.starts.copy(), self.ends.copy(), self.values.copy()
        return other

    def rows(self, where: slice = slice(None)) -> list[tuple[int, int, T]]:
        """Start, end and value of each piece, or of those that between() gave."""
        return list(zip(self.starts[where], self.ends[where], self.values[where], strict=True))

    def between(self, start: int, end: int) -> slice:
        """The pieces that have some of the addresses [start, end)."""
        first = bisect_right(self.ends, start)
        return slice(first, max(first, bisect_left(self.starts, end)))

    def put(self, start: int, end: int, value: T | None) -> None:
        """Lays a value over [start, end); None leaves nothing there."""
        where = self.between(start, end)
        new = [] if value is None else [(start, end, value)]
        if where.start < where.stop:
            first, last = where.start, where.stop - 1
            if self.starts[first] < start:
                new.insert(0, (self.starts[first], start, self.values[first]))
            if self.ends[last] > end:
                new.append((end, self.ends[last], self.values[last]))
        self.starts[where] = [row[0] for row in new]
        self.ends[where] = [row[1] for row in new]
        self.values[where] = [row[2] for row in new]
