"""Rows as RFC 4180 text: numbers bare, names quoted, what is not known empty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from wstrace.batch import Batch, Dictionary, names_of
from wstrace.schema import Column
from wstrace.text import spreadsheet_text
from wstrace.trace import Trace

#: rows that are turned into text at once: bounds the memory
_ROWS = 65_536


def write(
    trace: Trace,
    file: IO[bytes],
    *,
    stream: str = "page_fault",
    columns: Sequence[str] | None = None,
    start: int | None = None,
    end: int | None = None,
) -> int:
    """Writes a header and a line for each row; gives their number."""
    batches = trace.batches(stream, columns, start, end)
    known = batches.columns
    file.write((",".join(cell(column.name) for column in known) + "\n").encode())
    rows = 0
    for batch in batches:
        for part in _parts(batch):
            file.write(lines(part, known, trace.strings).encode())
        rows += len(batch)
    return rows


def lines(batch: Batch, columns: Sequence[Column], strings: Dictionary) -> str:
    """The rows of a batch."""
    cells = [_cells(batch, column, strings) for column in columns]
    return "".join(",".join(row) + "\n" for row in zip(*cells, strict=True))


def cell(text: str) -> str:
    """A text as a quoted cell that no spreadsheet takes for a formula."""
    return '"' + spreadsheet_text(text).replace('"', '""') + '"'


def _cells(batch: Batch, column: Column, strings: Dictionary) -> Iterable[str]:
    if column.name not in batch:
        return [""] * len(batch)
    values = batch[column.name].tolist()
    names = names_of(column, strings)
    if names is None:
        return map(str, values)
    texts = {code: cell(names[code]) if code < len(names) else "" for code in set(values)}
    return map(texts.__getitem__, values)


def _parts(batch: Batch) -> Iterator[Batch]:
    for start in range(0, len(batch), _ROWS):
        yield batch.take(slice(start, start + _ROWS))
