"""Counting by columns: `distinct` finds values, `combinations` those of several columns, `group` counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Up to this size, values are marked in an array from the smallest to the largest; wider ranges are sorted.
_DENSE = 1 << 16
#: Rows per step: their index arrays (64 KiB) stay in the cache, which halves the cost of a row
_ROWS = 1 << 13
#: Up to so many combinations of all values between the smallest and the largest, these are counted without a look at
#: which of them occur: that takes half of the time of `group`.
_FEW = 1 << 11

#: Codes below this are made dense by a table of as many entries, which takes a tenth of the time of sorting them; but
#: not where there are fewer rows than one for so many entries.
_TABLE, _SPARSE = 1 << 22, 32
#: The last values that have numbers are in a table of so many bits.
_SLOTS = 16
#: An odd number that spreads the bits of a product: of the golden ratio.
MIX = 0x9E37_79B9_7F4A_7C15


def _slots(column: NDArray[Any]) -> tuple[NDArray[Any], int, NDArray[np.intp], NDArray[np.intp]]:
    """The distinct values of a column and the slots that stand for them: small integers.

    These are the column itself, or the index of each row's value among the distinct ones; the number to subtract from
    it for the slot of a row; the slots that occur, ascending; and the value of the column at each of them.

    Codes and ids are small or close together, so marking them in an array replaces a sort at a tenth of its cost.
    """
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, -1)
    if high - low >= max(_DENSE, 4 * len(column)):
        values, stand_in = np.unique(column, return_inverse=True)
        return stand_in, 0, np.arange(len(values)), values.astype(np.intp)
    present = np.ones(high - low + 1, np.bool_)
    if high > low:
        present[:] = False
        for start in range(0, len(column), _ROWS):
            present[column[start : start + _ROWS].astype(np.intp) - low] = True
    slots = np.flatnonzero(present)
    return column, low, slots, slots + low


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The distinct values of integers, ascending, shape (k,). Runs of equal ones cost next to nothing.

    np.unique returns the same, but takes 9 to 30 times as long for a million integers (numpy 2.4), and it imports
    numpy.ma, which costs 12 ms of a start.
    """
    values = values.reshape(-1)
    if len(values):
        values = np.append(values[0], values[1:][values[1:] != values[:-1]])
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    found: NDArray[Any] = ordered[first]
    return found


def group(*columns: NDArray[Any], weights: NDArray[Any] | None = None) -> tuple[list[NDArray[np.intp]], NDArray[Any]]:
    """The distinct combinations of the columns' rows and how often each occurs; 10 to 20 ns per row.

    columns: integers (as wide as i64 holds), each shape (n,). weights: the count of each row instead of 1, shape (n,);
    sums are exact up to 2**53. Returns one array of values per column, each shape (k,), in ascending order of the
    combination; the counts, i64 (k,).
    """
    n, cells = len(columns[0]), 1
    values_of: list[NDArray[np.intp]] = []
    # The digits of a mixed-radix number, last column first: a digit for each slot, or what each slot is multiplied by.
    parts: list[tuple[NDArray[Any], int, NDArray[np.intp] | int]] = []
    for column in reversed(columns):
        # A column of the kernel's own rows is strided. It is read three times, so it is made contiguous once.
        column = np.ascontiguousarray(column)
        low, high = (int(column.min()), int(column.max())) if n else (0, 0)
        if cells * (high - low + 1) <= _FEW:
            values = np.arange(low, high + 1)
            if high > low:
                parts.append((column, low, cells))
            values_of.append(values)
            cells *= len(values)
            continue
        stand_in, low, slots, values = _slots(column)
        if len(values) > 1:
            digit = np.zeros(slots[-1] + 1, np.intp)
            digit[slots] = np.arange(len(values)) * cells
            parts.append((stand_in, low, digit))
        values_of.append(values)
        cells *= max(len(values), 1)

    def cell(rows: slice) -> NDArray[np.intp]:
        """Each row's combination as one number below `cells`."""
        number = np.zeros(len(columns[0][rows]), np.intp)
        for stand_in, low, digit in parts:
            slots = stand_in[rows].astype(np.intp) - low
            number += slots * digit if isinstance(digit, int) else digit.take(slots)
        return number

    occurs: NDArray[Any]
    counts: NDArray[Any]
    if cells == 1 and n:
        occurs, counts = np.zeros(1, np.intp), np.array([n if weights is None else weights.sum()])
    elif cells <= max(_DENSE, n):
        rows_of, sums = np.zeros(cells, np.int64), np.zeros(cells)
        for start in range(0, n, _ROWS):
            rows = slice(start, start + _ROWS)
            numbers = cell(rows)
            rows_of += np.bincount(numbers, minlength=cells)
            if weights is not None:
                sums += np.bincount(numbers, weights[rows], cells)
        occurs = np.flatnonzero(rows_of)
        counts = (rows_of if weights is None else sums)[occurs]
    else:
        occurs, inverse = np.unique(cell(slice(None)), return_inverse=True)
        counts = np.bincount(inverse, weights)
    found = []
    for values in values_of:
        occurs, index = np.divmod(occurs, max(len(values), 1))
        found.append(values[index])
    return found[::-1], counts.astype(np.int64)


def begins(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row differs from the one before it in any of these columns of shape (n,); the first row does."""
    new = np.ones(len(columns[0]), np.bool_)
    np.not_equal(columns[0][1:], columns[0][:-1], out=new[1:])
    for column in columns[1:]:
        new[1:] |= column[1:] != column[:-1]
    return new


def combinations(*columns: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """One row of each combination of values in these columns, shape (n,), and which of these each row has.

    The columns hold integers or bools. Rows that equal the one before them cost little: pages and faults come in runs.
    """
    n = len(columns[0])
    first = np.flatnonzero(begins(*columns)) if n else np.zeros(0, np.intp)
    code = np.zeros(len(first), np.int64)
    for column in columns:
        values = _dense(column[first].astype(np.uint8) if column.dtype == np.bool_ else column[first])
        width = int(values.max(initial=0)) + 1
        code = _dense(code * width + values) if width > 1 else code
    rows = np.zeros(int(code.max(initial=-1)) + 1, np.intp)
    rows[code] = first
    return rows, np.repeat(code.astype(np.int32), np.diff(first, append=n))


def _dense(values: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers below that of the distinct values, equal where the values are."""
    if not len(values) or not values.any():
        return np.zeros(len(values), np.int64)
    if values.max() < min(_TABLE, _SPARSE * len(values)) and values.min() >= 0:
        there = np.zeros(int(values.max()) + 1, np.bool_)
        there[values] = True
        dense: NDArray[np.int64] = np.cumsum(there, dtype=np.int32)[values].astype(np.int64) - 1
        return dense
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


class Numbers:
    """Gives each distinct value of 64 bits a number from 1 on, in the order in which they come; 0 is 0.

    most: how many numbers there are; further values have the number 0.
    """

    def __init__(self, most: int = 1 << 32) -> None:
        self._most = most
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
        new = some[~self._known(some)][: self._most - len(self._ordered)]
        first = np.zeros(len(new), np.intp)
        if len(new):
            place = new.searchsorted(own)
            inside = new.take(place, mode="clip") == own
            first[place[inside]] = other[inside]
            at, numbers = self._ordered.searchsorted(new), np.arange(len(new), dtype=np.uint32)
            self._numbers = np.insert(self._numbers, at, numbers + len(self._ordered))
            self._ordered = np.insert(self._ordered, at, new)
        number = np.where(self._known(own), self._numbers.take(self._ordered.searchsorted(own), mode="clip"), 0)
        self._last[slot], self._at[slot] = own, number  # of several at a slot the last one takes it
        found[other] = number
        return found, first

    def _known(self, values: NDArray[np.uint64]) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self._ordered.take(self._ordered.searchsorted(values), mode="clip") == values
        return known
