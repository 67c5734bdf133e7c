"""Rows as Arrow, through the small package arro3-core: names and kinds in clear, as dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from wstrace.batch import Batch, Dictionary, names_of
from wstrace.errors import missing
from wstrace.schema import Column

_NUMBERS = {"u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "i64": "int64"}


def arro3() -> Any:
    """The module arro3.core. Raises Unavailable with the command that installs it."""
    try:
        import arro3.core
    except ImportError as error:
        raise missing("arro3-core", error, "pip install 'wstrace[arrow]'") from None
    return arro3.core


class Converter:
    """Makes Arrow record batches of batches; every one has the same columns.

    columns: the columns; those that a batch lacks are null there. strings: the names behind the codes of `str` columns.
    batches: the batches; nothing is read before the record batches are.
    """

    def __init__(self, columns: Sequence[Column], strings: Dictionary, batches: Iterable[Batch]) -> None:
        self._core = arro3()
        self._read = batches
        self._strings = strings
        self.columns = tuple(columns)
        #: what codes mean -> (names of the trace by then, its dictionary)
        self._names: dict[str | tuple[str, ...], tuple[int, Any]] = {}
        self.schema = self._core.Schema([self._core.Field(c.name, self._type(c), nullable=True) for c in self.columns])

    def _dictionary(self, names: list[str]) -> Any:
        """The names as an array of that dictionary; rows are taken from it by code."""
        core = self._core
        plain = core.Array(names, core.DataType.utf8())
        return plain.cast(core.DataType.dictionary(core.DataType.uint32(), core.DataType.utf8()))

    def _named(self, column: Column) -> Any:
        """The dictionary of a column's names; None for numbers. While a trace is read, its marks may coin new names."""
        space = column.words or column.semantic
        known = self._names.get(space)
        if known is None or known[0] != len(self._strings):
            size, names = len(self._strings), names_of(column, self._strings)
            known = self._names[space] = (size, None if names is None else self._dictionary(names))
        return known[1]

    def _type(self, column: Column) -> Any:
        kinds = self._core.DataType
        if self._named(column) is not None:
            return kinds.dictionary(kinds.uint32(), kinds.utf8())
        return getattr(kinds, _NUMBERS[column.type])()

    def _array(self, batch: Batch, column: Column) -> Any:
        core, names = self._core, self._named(column)
        if column.name in batch:
            values = core.Array.from_numpy(batch[column.name])
        else:  # arro3 makes no dictionaries of nulls, but takes rows of one by them
            values = core.Array([None] * len(batch), getattr(core.DataType, _NUMBERS[column.type])())
        return values if names is None else names.take(values.cast(core.DataType.uint32()))

    def record_batches(self) -> Iterator[Any]:
        """One record batch a batch."""
        for batch in self._read:
            arrays = [self._array(batch, column) for column in self.columns]
            yield self._core.RecordBatch.from_arrays(arrays, schema=self.schema)

    def reader(self) -> Any:
        """A reader of record batches (arro3), streamed: it has `__arrow_c_stream__`."""
        return self._core.RecordBatchReader.from_batches(self.schema, self.record_batches())
