"""Rows that wait for the watermark: they are given out in order of time, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from wstrace.schema import DTYPES, Schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

Row = TypeVar("Row", bound=tuple[Any, ...])


def until(rows: list[Row], watermark: int) -> tuple[list[Row], list[Row]]:
    """The rows up to the watermark in order of time, and the rest."""
    if not rows:
        return [], rows
    due = sorted((row for row in rows if row[0] <= watermark), key=lambda row: row[0])
    return due, [row for row in rows if row[0] > watermark] if len(due) < len(rows) else []


def columns_of(schema: Schema, rows: list[tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """The rows as the columns of their stream."""
    dtype = np.dtype([(column.name, DTYPES[column.type]) for column in schema.columns])
    table = np.array(rows, dtype)
    return {name: np.ascontiguousarray(table[name]) for name in dtype.names or ()}


def with_listings(
    schema: Schema, rows: list[tuple[int, ...]], listings: list[tuple[int, dict[str, NDArray[Any]]]]
) -> dict[str, NDArray[Any]]:
    """Rows in order of time as the columns of their stream, with whole listings (time, columns) among them."""
    parts = []
    for time_ns, columns in sorted(listings, key=lambda one: one[0]):
        before, rows = until(rows, time_ns)
        parts += [columns_of(schema, before), columns]
    parts.append(columns_of(schema, rows))
    return {c.name: np.concatenate([part[c.name] for part in parts]) for c in schema.columns}
