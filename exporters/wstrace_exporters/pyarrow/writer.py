"""Writes rows as Parquet; names become dictionary columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

from wstrace.errors import missing
from wstrace.schema import Column
from wstrace.table import Batches

#: Rows of a group of Parquet: engines read and skip whole groups, and each has dictionaries of its own.
GROUP_ROWS = 1 << 20
#: The signed type that holds a number where engines have no unsigned ones; 64 bits keep their bits.
_SIGNED = {"uint8": "int16", "uint16": "int32", "uint32": "int64"}


def pyarrow() -> Any:
    """The module pyarrow. Raises Unavailable with the command that installs it."""
    try:
        import pyarrow
    except ImportError as error:
        raise missing("pyarrow", error, "pip install 'wstrace[convert]'") from None
    return pyarrow


def write_parquet(rows: Batches, file: IO[bytes]) -> int:
    """Writes Parquet, compressed with zstd; returns the number of rows."""
    arrow = pyarrow()
    from pyarrow import parquet

    reader, encodings = arrow.RecordBatchReader.from_stream(rows), _encodings(rows.columns)
    schema = _signed(arrow, arrow.Table.from_batches([], reader.schema)).schema
    dictionaries = [name for name in schema.names if name not in encodings]
    n = 0
    # Without Arrow's own schema: by that one, names are of a dictionary type, which DataFusion's engines refuse.
    with parquet.ParquetWriter(
        file, schema, compression="zstd", use_dictionary=dictionaries, column_encoding=encodings, store_schema=False
    ) as writer:
        for group in _groups(arrow, reader):
            writer.write_table(_signed(arrow, group).unify_dictionaries(), row_group_size=GROUP_ROWS)
            n += group.num_rows
    return n


def _encodings(columns: Sequence[Column]) -> dict[str, str]:
    """The columns that are no dictionaries, and how they are written: times hardly differ, addresses in few bytes.

    Dictionaries are smaller for all others, and for instructions, as few of these fault often.
    """
    times = {column.name: "DELTA_BINARY_PACKED" for column in columns if column.semantic == "ns"}
    wide = [c.name for c in columns if c.type == "u64" and c.semantic in ("addr", "count") and c.name != "pc"]
    return times | dict.fromkeys(wide, "BYTE_STREAM_SPLIT")


def _groups(arrow: Any, reader: Any) -> Iterator[Any]:
    """The rows as tables of GROUP_ROWS, the last one with fewer."""
    held: list[Any] = []
    rows = 0
    for batch in reader:
        held.append(batch)
        rows += batch.num_rows
        if rows >= GROUP_ROWS:
            whole = arrow.Table.from_batches(held)
            yield whole.slice(0, GROUP_ROWS)
            held = whole.slice(GROUP_ROWS).to_batches()
            rows -= GROUP_ROWS
    if rows:
        yield arrow.Table.from_batches(held)


def _signed(arrow: Any, table: Any) -> Any:
    """The table without unsigned numbers, which many engines lack. An address above 2**63 becomes negative."""
    columns = []
    for column in table.columns:
        if str(column.type) == "uint64":
            chunks = [chunk.view(arrow.int64()) for chunk in column.chunks]
            column = arrow.chunked_array(chunks, arrow.int64())
        elif signed := _SIGNED.get(str(column.type)):
            column = column.cast(signed)
        columns.append(column)
    return arrow.table(columns, names=table.column_names)
