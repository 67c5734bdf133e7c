"""Rows as JSON objects. The keys are the columns; unknown values are null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from wstrace.batch import Batch, Dictionary, names_of
from wstrace.schema import Column
from wstrace.table import Batches
from wstrace.text import json_line

#: The number of rows that become text at once, which bounds the memory.
_ROWS = 65_536


def write(rows: Batches, file: IO[bytes]) -> int:
    """Writes one object per row; returns the number of rows."""
    known, strings, n = rows.columns, rows.trace.strings, 0
    for batch in rows:
        for part in _parts(batch):
            file.write(lines(part, known, strings).encode())
        n += len(batch)
    return n


def lines(batch: Batch, columns: Sequence[Column], strings: Dictionary) -> str:
    """The rows of a batch as text."""
    values = [_values(batch, column, strings) for column in columns]
    return "".join("{" + ",".join(row) + "}\n" for row in zip(*values, strict=True))


def _values(batch: Batch, column: Column, strings: Dictionary) -> Iterable[str]:
    """`"key":value` for each row."""
    key = json_line(column.name) + ":"
    if column.name not in batch:
        return [f"{key}null"] * len(batch)
    values = batch[column.name].tolist()
    names = names_of(column, strings)
    if names is None:
        return [f"{key}{value}" for value in values]
    texts = {code: key + json_line(names[code] if code < len(names) else "") for code in set(values)}
    return map(texts.__getitem__, values)


def _parts(batch: Batch) -> Iterator[Batch]:
    for start in range(0, len(batch), _ROWS):
        yield batch.take(slice(start, start + _ROWS))
