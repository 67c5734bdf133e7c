"""Writes rows as Parquet or Arrow IPC, one batch at a time; names become dictionary columns."""

from __future__ import annotations

from typing import IO, Any

from wstrace.errors import Unavailable
from wstrace.table import Batches


def pyarrow() -> Any:
    """The module pyarrow. Raises Unavailable with the command that installs it."""
    try:
        import pyarrow
    except ImportError:
        raise Unavailable("the package pyarrow is not installed", "pip install 'wstrace[convert]'") from None
    return pyarrow


def write_parquet(rows: Batches, file: IO[bytes]) -> int:
    """Writes Parquet, compressed with zstd; returns the number of rows."""
    reader = pyarrow().RecordBatchReader.from_stream(rows)
    from pyarrow import parquet

    return _write(reader, parquet.ParquetWriter(file, reader.schema, compression="zstd"))


def write_arrow(rows: Batches, file: IO[bytes]) -> int:
    """Writes an Arrow IPC file; returns the number of rows."""
    arrow = pyarrow()
    reader = arrow.RecordBatchReader.from_stream(rows)
    options = arrow.ipc.IpcWriteOptions(unify_dictionaries=False)
    return _write(reader, arrow.ipc.new_file(file, reader.schema, options=options))


def _write(reader: Any, writer: Any) -> int:
    n = 0
    with writer:
        for batch in reader:
            writer.write_batch(batch)
            n += batch.num_rows
    return n
