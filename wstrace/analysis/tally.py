"""Counting by columns: `group` counts the distinct combinations in a batch, `Tally` adds them up in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

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


class _Slots(NamedTuple):
    """A column as small integers: `values[i] - offset` is the slot of row i."""

    values: NDArray[Any]  #: the column itself, or the index of each row's value among the distinct ones
    offset: int  #: the number to subtract from `values`
    occupied: NDArray[np.intp]  #: the slots that occur, ascending
    distinct: NDArray[np.intp]  #: the value of the column at each of these slots


def _slots(column: NDArray[Any]) -> _Slots:
    """The distinct values of a column and the slots that stand for them.

    Codes and ids are small or close together, so marking them in an array replaces a sort at a tenth of its cost.
    """
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, -1)
    if high - low >= max(_DENSE, 4 * len(column)):
        values, stand_in = np.unique(column, return_inverse=True)
        return _Slots(stand_in, 0, np.arange(len(values)), values.astype(np.intp))
    present = np.ones(high - low + 1, np.bool_)
    if high > low:
        present[:] = False
        for start in range(0, len(column), _ROWS):
            present[column[start : start + _ROWS].astype(np.intp) - low] = True
    slots = np.flatnonzero(present)
    return _Slots(column, low, slots, slots + low)


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


#: The row of what the kernel counted and no sample stands for: the last faults of each thread have none. It is the
#: rest: it comes last, however much it is, and stays where a table is cut off.
NO_SAMPLE = "(no sample stands for it)"
NOTHING: NDArray[Any] = np.empty(0, np.intp)


class _Labelled(Protocol):
    @property
    def label(self) -> str: ...


_Row = TypeVar("_Row", bound=_Labelled)


def first_rows(rows: Sequence[_Row], n: int | None) -> list[_Row]:
    """The first n rows (None: all), and NO_SAMPLE where it comes behind them."""
    return [*rows[:n], *(row for row in rows[len(rows) if n is None else n :] if row.label == NO_SAMPLE)]


class Tally:
    """key -> a count and the part of it that is special (major faults), in bounded memory.

    When there are more than `limit` keys, the half with the smaller counts is added to `other` and forgotten. A
    forgotten key that returns starts at zero: sums stay exact, but the counts of rare keys become lower bounds.

    Attributes:
        keys: u64, ascending, shape (k,).
        counts: i64, shape (k, 2).
        other: i64, shape (2,): the counts of forgotten keys.
        forgotten: how many keys were forgotten.
    """

    LIMIT = 65_536

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.keys: NDArray[np.uint64] = np.empty(0, np.uint64)
        self.counts: NDArray[np.int64] = np.empty((0, 2), np.int64)
        self.other: NDArray[np.int64] = np.zeros(2, np.int64)
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, keys: NDArray[Any], counts: NDArray[Any], part_keys: NDArray[Any] = NOTHING,
            part_counts: NDArray[Any] = NOTHING) -> None:  # fmt: skip
        """Adds counts under keys, shape (k,), and the part of them for the second column; keys may repeat."""
        keys = keys.astype(np.uint64)
        at = self.keys.searchsorted(keys)
        # After the first batches nearly every key is known, and np.unique would cost more than all that follows.
        known = self.keys.take(at, mode="clip") == keys if len(self.keys) else np.zeros(len(keys), np.bool_)
        if not known.all():
            new = distinct(keys[~known])
            places = self.keys.searchsorted(new)
            self.keys = np.insert(self.keys, places, new)
            self.counts = np.insert(self.counts, places, 0, axis=0)
            at = self.keys.searchsorted(keys)
        np.add.at(self.counts[:, 0], at, counts)
        if len(part_keys):
            np.add.at(self.counts[:, 1], self.keys.searchsorted(part_keys.astype(np.uint64)), part_counts)
        if len(self.keys) > self.limit:
            self._forget(len(self.keys) - self.limit // 2)

    def _forget(self, n: int) -> None:
        keep = np.ones(len(self.keys), np.bool_)
        keep[np.argpartition(self.counts[:, 0], n)[:n]] = False
        self.other += self.counts[~keep].sum(axis=0)
        self.keys, self.counts = self.keys[keep], self.counts[keep]
        self.forgotten += n

    def as_dict(self) -> dict[int, int]:
        """key -> its count."""
        return dict(zip(self.keys.tolist(), self.counts[:, 0].tolist(), strict=True))

    def total(self) -> NDArray[np.int64]:
        """The sum of all counts ever added, shape (2,)."""
        total: NDArray[np.int64] = self.counts.sum(axis=0) + self.other
        return total


class Sums:
    """u64 keys -> sums, i64. There are at most as many as call sites and instructions, whose numbers are bounded.

    Args:
        columns: the number of sums of each key.

    Attributes:
        keys: ascending, shape (k,).
        sums: shape (k, columns).
    """

    def __init__(self, columns: int) -> None:
        self.keys: NDArray[np.uint64] = np.empty(0, np.uint64)
        self.sums: NDArray[np.int64] = np.empty((0, columns), np.int64)

    def add(self, keys: NDArray[np.uint64], values: NDArray[np.int64]) -> None:
        """Adds rows of values, shape (n, columns), to those of keys, shape (n,), which are distinct."""
        at = self.keys.searchsorted(keys)
        known = at < len(self.keys)
        known[known] = self.keys[at[known]] == keys[known]
        self.sums[at[known]] += values[known]
        if not known.all():
            order = np.argsort(keys[~known])
            where = at[~known][order]
            self.keys = np.insert(self.keys, where, keys[~known][order])
            self.sums = np.insert(self.sums, where, values[~known][order], axis=0)
