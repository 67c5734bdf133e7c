"""Rows as RFC 4180 text: numbers bare, names quoted, unknown values empty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from wstrace.batch import Batch, Dictionary, names_of
from wstrace.schema import Column
from wstrace.table import Batches
from wstrace.text import spreadsheet_text

#: The number of rows that become text at once, which bounds the memory: a name has up to 4,096 bytes.
_ROWS = 4096


def write(rows: Batches, file: IO[bytes]) -> int:
    """Writes a header and one line per row; returns the number of rows."""
    known, strings, n = rows.columns, rows.trace.strings, 0
    file.write((",".join(cell(column.name) for column in known) + "\n").encode())
    for batch in rows:
        for text in lines(batch, known, strings):
            file.write(text)
        n += len(batch)
    return n


def lines(batch: Batch, columns: Sequence[Column], strings: Dictionary) -> Iterator[bytes]:
    """The rows of a batch as text, some thousands at a time."""
    names = {column.name: names_of(column, strings) for column in columns}
    for start in range(0, len(batch), _ROWS):
        part = batch.take(slice(start, start + _ROWS))
        cells = [_cells(part, column.name, names[column.name]) for column in columns]
        yield "".join(",".join(row) + "\n" for row in zip(*cells, strict=True)).encode()


def cell(text: str) -> str:
    """A text as a quoted cell that no spreadsheet takes for a formula."""
    return '"' + spreadsheet_text(text).replace('"', '""') + '"'


def _cells(batch: Batch, column: str, names: Sequence[str] | None) -> Iterable[str]:
    """The cells of a column: numbers, or the names behind them."""
    if column not in batch:
        return [""] * len(batch)
    values = batch[column].tolist()
    if names is None:
        return map(str, values)
    texts = {code: cell(names[code]) if code < len(names) else "" for code in set(values)}
    return map(texts.__getitem__, values)
