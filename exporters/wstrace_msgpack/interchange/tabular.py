"""A selection as a file of another format, by pyarrow: one batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch
from wstrace.errors import Unavailable
from wstrace.output_file import whole_file
from wstrace.schema import KINDS, Column
from wstrace.text import well_formed
from wstrace_msgpack.read.trace import Batches

FORMATS = frozenset((".parquet", ".csv", ".jsonl", ".arrow"))


def pyarrow() -> Any:
    """The module pyarrow. Raises Unavailable with the command that installs it."""
    try:
        import pyarrow
    except ImportError:
        raise Unavailable("the package pyarrow is not installed", "pip install 'wstrace[convert]'") from None
    return pyarrow


class Table:
    """Makes pyarrow record batches; names and kinds are dictionaries of texts."""

    def __init__(self, batches: Batches) -> None:
        self._pa = pa = pyarrow()
        trace = batches.trace
        self._strings = trace.strings
        stream = batches.selection.stream or "page_fault"
        self.columns = trace.columns_of(stream, batches.selection.columns)
        names = [well_formed(name) for name in self._strings.names(0, len(self._strings))]
        self._names = pa.array(names, pa.string())
        self._kinds = pa.array([*KINDS, *("" for _ in range(len(KINDS), 256))], pa.string())
        self.schema = pa.schema([pa.field(c.name, self._type(c)) for c in self.columns])

    def _type(self, column: Column) -> Any:
        pa = self._pa
        if column.semantic == "str" or column.name == "kind":
            return pa.dictionary(pa.int32(), pa.string())
        numbers = {"u8": pa.uint8(), "u16": pa.uint16(), "u32": pa.uint32(), "u64": pa.uint64(), "i64": pa.int64()}
        return numbers[column.type]

    def record_batch(self, batch: Batch) -> Any:
        """The batch as Arrow; a column that it lacks is null."""
        return self._pa.record_batch([self._array(batch, column) for column in self.columns], schema=self.schema)

    def _array(self, batch: Batch, column: Column) -> Any:
        pa = self._pa
        if column.name not in batch:
            return pa.nulls(len(batch), self._type(column))
        values: NDArray[Any] = batch[column.name]
        if column.semantic == "str":
            if len(self._strings) > len(self._names):  # marks coin names while they are read
                more = self._strings.names(len(self._names), len(self._strings))
                self._names = pa.concat_arrays([self._names, pa.array(map(well_formed, more), pa.string())])
            return pa.DictionaryArray.from_arrays(pa.array(values.astype(np.int32)), self._names)
        if column.name == "kind":
            return pa.DictionaryArray.from_arrays(pa.array(values.astype(np.int32)), self._kinds)
        return pa.array(values)


def write(batches: Batches, output: str, *, force: bool = False, progress: bool = False) -> int:
    """Writes a selection to a file of the format that its name ends in; gives the number of rows.

    The file appears under its name when it is whole.

    Raises:
        Unavailable: pyarrow is not installed.
        OutputError: it exists, or cannot be written.
    """
    table = Table(batches)
    rows = 0
    with (
        whole_file(output, force=force) as file,
        _bar(batches, progress) as advance,
        _sink(table, file, Path(output).suffix) as put,
    ):
        for batch in batches:
            put(batch)
            rows += len(batch)
            advance(len(batch))
    return rows


@contextmanager
def _sink(table: Table, file: IO[bytes], suffix: str) -> Iterator[Callable[[Batch], None]]:
    """What takes batches of that format."""
    pa = pyarrow()
    if suffix == ".jsonl":
        yield lambda batch: file.writelines(_json_lines(table.record_batch(batch)))
        return
    if suffix == ".parquet":
        writer = _parquet_writer(file, table.schema)
    elif suffix == ".csv":
        from pyarrow import csv

        plain = pa.schema(
            [pa.field(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in table.schema]
        )
        with csv.CSVWriter(file, plain) as lines:
            yield lambda batch: lines.write_batch(table.record_batch(batch).cast(plain))
        return
    else:
        writer = pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(unify_dictionaries=False))
    with writer:
        yield lambda batch: writer.write_batch(table.record_batch(batch))


def _parquet_writer(file: IO[bytes], schema: Any) -> Any:
    from pyarrow import parquet

    return parquet.ParquetWriter(file, schema, compression="zstd")


def _json_lines(record_batch: Any) -> Iterator[bytes]:
    import json

    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    for row in record_batch.to_pylist():
        yield encode(row).encode() + b"\n"


def _bar(batches: Batches, shown: bool) -> AbstractContextManager[Callable[[int], None]]:
    """A progress bar on stderr, by rows."""
    from wstrace.terminal.progress import progress_bar

    return progress_bar("convert", batches.trace.rows.get(batches.selection.stream or "", 0), shown=shown)
