"""Rows as RFC 4180 text: numbers bare, names quoted, unknown values empty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

from wstrace.batch import Batch
from wstrace.schema import Column
from wstrace.table import Batches, write_text
from wstrace.text import printable, spreadsheet_text


def write(rows: Batches, file: IO[bytes]) -> int:
    """Writes a header and one line per row; returns the number of rows."""
    file.write((",".join(cell(column.name) for column in rows.columns) + "\n").encode())
    return write_text(rows, file, cells, "", "\n")


def cell(text: str) -> str:
    """A text as a quoted cell that no spreadsheet takes for a formula, and in which nothing acts on a terminal."""
    return '"' + spreadsheet_text(printable(text)).replace('"', '""') + '"'


def cells(batch: Batch, column: Column, names: list[str] | None) -> Iterable[str]:
    """The cells of a column: numbers, or the names behind them."""
    if column.name not in batch:
        return [""] * len(batch)
    values = batch[column.name].tolist()
    if names is None:
        return map(str, values)
    texts = {code: cell(names[code]) if code < len(names) else "" for code in set(values)}
    return map(texts.__getitem__, values)
