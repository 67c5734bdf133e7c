"""Rows as RFC 4180 text: numbers bare, names quoted, unknown values empty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary, names_of
from wstrace.schema import Column
from wstrace.table import Batches
from wstrace.text import spreadsheet_text

#: rows that are turned into text at once, and bytes of their cells, all as wide as the widest: bounds the memory
_ROWS, _BYTES = 16_384, 8 << 20
#: what fills a cell up to that width, and is left out in the end: no byte of UTF-8
_PAD = 0xFF


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
        yield from _lines([_cells(part, column, names[column.name]) for column in columns], len(part))


def cell(text: str) -> str:
    """A text as a quoted cell that no spreadsheet takes for a formula."""
    return '"' + spreadsheet_text(text).replace('"', '""') + '"'


class _Cells:
    """The cells of a column as text: for each row an index into the distinct cells.

    Args:
        texts: the distinct cells, in UTF-8.
        index: the index of each row's cell, shape (n,).
    """

    def __init__(self, texts: list[bytes], index: NDArray[np.intp]) -> None:
        self._texts, self._index = texts, index

    def width(self, rows: slice) -> int:
        """The bytes of the widest cell of these rows."""
        return max((len(self._texts[code]) for code in distinct(self._index[rows]).tolist()), default=0)

    def padded(self, rows: slice) -> NDArray[np.uint8]:
        """The cells of these rows, u8, shape (n, width)."""
        codes = distinct(self._index[rows])
        width = self.width(rows)
        table = b"".join(self._texts[code].ljust(width, b"\xff") for code in codes.tolist())
        found: NDArray[np.uint8] = np.frombuffer(table, np.uint8).reshape(len(codes), width)
        return found[codes.searchsorted(self._index[rows])]


class _Numbers:
    """The cells of a column of numbers, in decimal digits."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values

    def width(self, rows: slice) -> int:
        """An upper bound on the bytes of the widest cell."""
        return 24

    def padded(self, rows: slice) -> NDArray[np.uint8]:
        """The cells of these rows, u8, shape (n, width)."""
        return digits(self._values[rows])


def _cells(batch: Batch, column: Column, names: list[str] | None) -> _Cells | _Numbers:
    if column.name not in batch:
        return _Cells([b""], np.zeros(len(batch), np.intp))
    values = batch[column.name]
    if names is None:
        return _Numbers(values)
    codes = distinct(values)
    texts = [cell(names[code]).encode() if code < len(names) else b"" for code in codes.tolist()]
    return _Cells(texts, codes.searchsorted(values))


def _lines(cells: Sequence[_Cells | _Numbers], rows: int) -> Iterator[bytes]:
    """The text of the rows. If a wide cell makes them too large, each half is converted on its own."""
    waiting = [slice(0, rows)]
    while waiting:
        part = waiting.pop()
        n = part.stop - part.start
        if n > 1 and n * sum(column.width(part) + 1 for column in cells) > _BYTES:
            middle = part.start + n // 2
            waiting += [slice(middle, part.stop), slice(part.start, middle)]
            continue
        comma, blocks = np.full((n, 1), ord(","), np.uint8), []
        for column in cells:
            blocks += [column.padded(part), comma]
        blocks[-1] = np.full((n, 1), ord("\n"), np.uint8)
        text = np.concatenate(blocks, axis=1).ravel()
        yield text[text != _PAD].tobytes()


def _groups() -> NDArray[np.uint32]:
    """The text of all four-digit groups, 4 bytes each: 0000 to 9999 with leading zeros, without them, and with one."""
    texts = [f"{n:04}" for n in range(10_000)] + [str(n or "") for n in range(10_000)] + [str(n) for n in range(10_000)]
    padded = "".join(text.rjust(4, "\xff") for text in texts).encode("latin-1")
    found: NDArray[np.uint32] = np.frombuffer(padded, "<u4")
    return found


_GROUPS = _groups()


def digits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Integers as decimal digits, each row padded with _PAD on the left, u8, shape (n, width)."""
    if not len(values):
        return np.empty((0, 0), np.uint8)
    negative = values < 0 if values.dtype.kind == "i" else None
    left = values.astype(np.uint64)
    if negative is not None:
        # This holds for the smallest integer too, which has no positive counterpart.
        left = np.where(negative, np.uint64(0) - left, left)
    groups = (len(str(int(left.max()))) + 3) // 4
    text = np.empty((len(values), groups), "<u4")
    for at in range(groups - 1, -1, -1):
        above = left // np.uint64(10_000)
        group = (left - above * np.uint64(10_000)).astype(np.intp)
        group[above == 0] += 20_000 if at == groups - 1 else 10_000
        text[:, at] = _GROUPS[group]
        left = above
    found = text.view(np.uint8)
    if negative is None:
        return found
    sign = np.where(negative, np.uint8(ord("-")), np.uint8(_PAD))
    return np.concatenate([sign[:, None], found], axis=1)
