"""Writes rows as Parquet or Arrow IPC, one batch at a time; names become dictionary columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

from wstrace.errors import Unavailable
from wstrace.trace import Trace


def pyarrow() -> Any:
    """The module pyarrow. Raises Unavailable with the command that installs it."""
    try:
        import pyarrow
    except ImportError:
        raise Unavailable("the package pyarrow is not installed", "pip install 'wstrace[convert]'") from None
    return pyarrow


def write_parquet(
    trace: Trace,
    file: IO[bytes],
    *,
    stream: str = "page_fault",
    columns: Sequence[str] | None = None,
    start: int | None = None,
    end: int | None = None,
) -> int:
    """Writes Parquet, compressed with zstd; returns the number of rows."""
    reader = pyarrow().RecordBatchReader.from_stream(trace.batches(stream, columns, start, end))
    from pyarrow import parquet

    return _write(reader, parquet.ParquetWriter(file, reader.schema, compression="zstd"))


def write_arrow(
    trace: Trace,
    file: IO[bytes],
    *,
    stream: str = "page_fault",
    columns: Sequence[str] | None = None,
    start: int | None = None,
    end: int | None = None,
) -> int:
    """Writes an Arrow IPC file; returns the number of rows."""
    arrow = pyarrow()
    reader = arrow.RecordBatchReader.from_stream(trace.batches(stream, columns, start, end))
    options = arrow.ipc.IpcWriteOptions(unify_dictionaries=False)
    return _write(reader, arrow.ipc.new_file(file, reader.schema, options=options))


def _write(reader: Any, writer: Any) -> int:
    rows = 0
    with writer:
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows
