"""Rows as JSON objects. The keys are the columns; unknown values are null."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

from wstrace.batch import Batch
from wstrace.schema import Column
from wstrace.table import Batches, write_text
from wstrace.text import json_line


def write(rows: Batches, file: IO[bytes]) -> int:
    """Writes one object per row; returns the number of rows."""
    return write_text(rows, file, _members, "{", "}\n")


def _members(batch: Batch, column: Column, names: list[str] | None) -> Iterable[str]:
    """`"key":value` for each row."""
    key = json_line(column.name) + ":"
    if column.name not in batch:
        return [f"{key}null"] * len(batch)
    values = batch[column.name].tolist()
    if names is None:
        return [f"{key}{value}" for value in values]
    texts = {code: key + json_line(names[code] if code < len(names) else "") for code in set(values)}
    return map(texts.__getitem__, values)
