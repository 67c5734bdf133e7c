"""Counting by columns: `distinct` finds their values, `group` counts the distinct combinations in a batch."""

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

    Args:
        columns: integers (as wide as i64 holds), each shape (n,).
        weights: the count of each row instead of 1, shape (n,); sums are exact up to 2**53.

    Returns:
        One array of values per column, each shape (k,), in ascending order of the combination; the counts, i64 (k,).
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
