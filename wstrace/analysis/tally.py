"""Counting by columns: `distinct` finds values, `combinations` those of several columns, `group` counts them.

np.unique would do for most of it, but it imports numpy.ma, which costs 12 ms of a start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Codes below _TABLE are made dense by a table with an entry for each, in a tenth of the time of sorting them, unless
#: it would have more than _SPARSE entries a row.
_TABLE, _SPARSE = 1 << 22, 32
#: The bits of a slot: the latest values are found in a table of 2 ** _SLOTS slots.
_SLOTS = 16
#: An odd number that spreads the bits of a product: of the golden ratio.
MIX = 0x9E37_79B9_7F4A_7C15


def expanded(begin: NDArray[np.intp], end: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The numbers of all ranges from `begin` to before `end`, one range behind the other.

    Returns the index of the range of each number; the numbers.
    """
    count = end - begin
    which = np.repeat(np.arange(len(count)), count)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(count) - count - begin, count)


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The distinct values of integers, ascending, shape (k,). Runs of equal ones cost next to nothing.

    np.unique returns the same, but takes 9 to 30 times as long for a million integers (numpy 2.4).
    """
    values = values.reshape(-1)
    if len(values):
        values = np.append(values[0], values[1:][values[1:] != values[:-1]])
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def begins(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row differs from the one before it in any of these columns of shape (n,); the first row does."""
    new = np.ones(len(columns[0]), np.bool_)
    np.not_equal(columns[0][1:], columns[0][:-1], out=new[1:])
    for column in columns[1:]:
        new[1:] |= column[1:] != column[:-1]
    return new


def numbered(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The distinct values of integers, ascending, and for each value the index of its own, shape (n,)."""
    first = np.flatnonzero(begins(values))
    found = distinct(values[first])
    return found, np.repeat(found.searchsorted(values[first]), np.diff(first, append=len(values)))


def rows_of_each(values: NDArray[Any]) -> list[tuple[int, NDArray[np.intp]]]:
    """The distinct values of integers, ascending, each with its rows in rising order."""
    found, which = numbered(values)
    if len(found) < 2:
        return [(value, np.arange(len(values))) for value in found.tolist()]
    which = which.astype(np.uint16) if len(found) <= 1 << 16 else which  # numpy sorts 16 bits by radix
    ends = np.cumsum(np.bincount(which))
    return list(zip(found.tolist(), np.split(np.argsort(which, kind="stable"), ends[:-1]), strict=True))


def combinations(*columns: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """One row of each combination of values in these columns, shape (n,), and which of these each row has.

    The columns hold integers or bools. Rows that equal the one before them cost little: pages and faults come in runs.
    """
    n = len(columns[0])
    first = np.flatnonzero(begins(*columns))
    code = np.zeros(len(first), np.int64)
    for column in columns:
        values = _dense(column[first].astype(np.uint8) if column.dtype == np.bool_ else column[first])
        width = int(values.max(initial=0)) + 1
        code = _dense(code * width + values) if width > 1 else code
    rows = np.zeros(int(code.max(initial=-1)) + 1, np.intp)
    rows[code] = first
    return rows, np.repeat(code.astype(np.int32), np.diff(first, append=n))


def group(*columns: NDArray[Any], weights: NDArray[Any] | None = None) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
    """The distinct combinations of the columns' rows, one array a column, shape (k,), ascending; how often each occurs.

    weights: the count of each row instead of 1, shape (n,); sums are exact up to 2**53.
    """
    rows, which = combinations(*columns)
    return [column[rows] for column in columns], np.bincount(which, weights, len(rows)).astype(np.int64)


def _dense(values: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers below that of the distinct values, equal where the values are."""
    if not len(values) or not values.any():
        return np.zeros(len(values), np.int64)
    if values.max() < min(_TABLE, _SPARSE * len(values)) and values.min() >= 0:
        there = np.zeros(int(values.max()) + 1, np.bool_)
        there[values] = True
        dense: NDArray[np.int64] = np.cumsum(there, dtype=np.int32)[values].astype(np.int64) - 1
        return dense
    return numbered(values)[1].astype(np.int64)


class Numbers:
    """Gives each distinct value of 64 bits a number from 1 on, in the order in which they come; 0 is 0."""

    def __init__(self) -> None:
        self.clear(np.zeros(0, np.uint64))

    def clear(self, values: NDArray[np.uint64]) -> None:
        """Forgets all; these values are numbered anew."""
        order = np.argsort(values)
        self._ordered = np.append(np.zeros(1, np.uint64), values[order])  # ascending; and their numbers
        self._numbers = np.append(np.zeros(1, np.uint32), (order + 1).astype(np.uint32))
        # the last values, each at the slot that the top bits of a product give
        self._last, self._at = np.zeros(1 << _SLOTS, np.uint64), np.zeros(1 << _SLOTS, np.uint32)

    def of(self, values: NDArray[np.uint64]) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
        """The number of each value, shape (n,), and one row of each that is new, in the order of their numbers."""
        slots = (values * np.uint64(MIX) >> np.uint64(64 - _SLOTS)).astype(np.intp)
        found, other = self._at[slots], np.flatnonzero(self._last[slots] != values)
        if not len(other):
            return found, other
        own, slot = values[other], slots[other]
        some = distinct(own)
        new = some[self._ordered.take(self._ordered.searchsorted(some), mode="clip") != some]
        first = np.zeros(len(new), np.intp)
        if len(new):
            place = new.searchsorted(own)
            inside = new.take(place, mode="clip") == own
            first[place[inside]] = other[inside]
            at, numbers = self._ordered.searchsorted(new), np.arange(len(new), dtype=np.uint32)
            self._numbers = np.insert(self._numbers, at, numbers + len(self._ordered))
            self._ordered = np.insert(self._ordered, at, new)
        number = self._numbers[self._ordered.searchsorted(own)]
        self._last[slot], self._at[slot] = own, number  # of several at a slot the last one takes it
        found[other] = number
        return found, first
