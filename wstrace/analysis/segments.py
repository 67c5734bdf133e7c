"""Segments: neighbouring rows that are equal, and the distinct ones among all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Codes below this are made dense by a table of as many entries, which takes a tenth of the time of sorting them; but
#: not where there are fewer rows than one for so many entries.
_TABLE, _SPARSE = 1 << 22, 32


def begins(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row differs from the one before it in any of these columns of shape (n,); the first row does."""
    new = np.ones(len(columns[0]), np.bool_)
    np.not_equal(columns[0][1:], columns[0][:-1], out=new[1:])
    for column in columns[1:]:
        new[1:] |= column[1:] != column[:-1]
    return new


def distinct(*columns: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """One row of each combination of values in these columns, shape (n,), and which of these each row is.

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
