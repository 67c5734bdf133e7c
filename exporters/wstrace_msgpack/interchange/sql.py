"""SQL over a trace: each stream is a DuckDB table that is streamed from the file, with the columns a query names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from wstrace.analysis.snapshots import LastSnapshots
from wstrace.arrow import Converter
from wstrace.batch import Batch
from wstrace.errors import TraceFileError, Unavailable, UsageError
from wstrace.plugins import default_plugins
from wstrace.text import printable
from wstrace_msgpack.read.prefetch import Prefetched
from wstrace_msgpack.read.trace import TraceFile, open_trace

#: tables beside those of the streams that a trace has rows of
ALWAYS = ("page_fault", "process", "mapping")


class Answer(NamedTuple):
    """Column names and rows of a query; incomplete: what the trace file lacks, in words, "" for nothing."""

    names: list[str]
    rows: list[tuple[Any, ...]]
    incomplete: str = ""


def duckdb() -> Any:
    """The module duckdb. Raises Unavailable with the command that installs it."""
    try:
        import duckdb
    except ImportError:
        raise Unavailable("the package duckdb is not installed", "pip install 'wstrace[sql]'") from None
    return duckdb


@contextmanager
def connect(path: str, sql: str) -> Iterator[Answer]:
    """Answers one query over a trace file, or over what `convert` made of its page faults (.parquet).

    Raises:
        UsageError: DuckDB does not understand the query.
        TraceFileError: no such file, or no trace.
    """
    module = duckdb()
    connection = module.connect(":memory:")
    try:
        reader = _reader(path)
        if reader:
            _confine(connection, path)
            quoted = path.replace("'", "''")
            try:
                connection.execute(f"create view page_fault as select * from {reader}('{quoted}')")  # noqa: S608
            except module.Error as error:
                raise TraceFileError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
            yield _answer(module, connection, sql)
            return
        _confine(connection)
        with open_trace(path) as trace:
            for stream in sorted({*ALWAYS, *trace.streams} - {"mark"}):
                if not trace.columns_of(stream):  # a file may have rows of a stream of which it tells no column
                    continue
                connection.register(printable(stream), Streamed(trace, stream, named_columns(trace, stream, sql)))
            if "resident" in trace.streams:
                connection.register("still_resident", StillResident(trace, "resident", _names(trace, "resident")))
            yield _answer(module, connection, sql)._replace(incomplete=trace.info.incomplete)
    finally:
        connection.close()


def _reader(path: str) -> str:
    """The table function of DuckDB that reads what a format wrote; "" for a trace file."""
    formats = default_plugins().formats
    return next((found.sql for suffix, (_, found) in formats.items() if path.lower().endswith(suffix)), "")


def _confine(connection: Any, *paths: str) -> None:
    """A query that comes with a file from elsewhere reads no other file, loads no extension, and cannot undo this."""
    if paths:
        connection.execute("set allowed_paths = ?", [list(paths)])
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")


def _answer(module: Any, connection: Any, sql: str) -> Answer:
    try:
        result = connection.execute(sql)
        return Answer([column[0] for column in result.description], result.fetchall())
    except module.Error as error:
        raise UsageError(f"query: {str(error).splitlines()[0]}") from None


class Streamed:
    """A stream as an Arrow stream that DuckDB may scan as often as it likes."""

    def __init__(self, trace: TraceFile, stream: str, columns: list[str]) -> None:
        self._trace, self._stream, self._columns = trace, stream, columns

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        batches = self._trace.batches(self._stream, self._columns)
        converter = Converter(batches, Prefetched(batches))
        return converter.reader().__arrow_c_stream__(requested_schema)


class StillResident(Streamed):
    """The rows of `resident` that count in every view: resident pages of the last whole snapshot of each process."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        batches = self._trace.batches(self._stream, self._columns)
        snapshots: LastSnapshots[list[Batch]] = LastSnapshots(list, list.append)
        for batch in batches:
            snapshots.add(batch)
        parts = [part for _, counted in snapshots for part in counted]
        return Converter(batches, parts).reader().__arrow_c_stream__(requested_schema)


def _names(trace: TraceFile, stream: str) -> list[str]:
    return [column.name for column in trace.columns_of(stream)]


def named_columns(trace: TraceFile, stream: str, sql: str) -> list[str]:
    """The columns of a stream whose names occur in a query; all where it may mean all. At least one, to count rows."""
    known = _names(trace, stream)
    text = re.sub(r"count\s*\(\s*\*\s*\)", "count()", sql, flags=re.IGNORECASE).lower()
    words = re.findall(r"\w+", text)
    # `from t` without select, summarize, describe, columns(...), t as a value: all of it may be meant
    everything = re.search(r"(?:select|distinct|,|\.|\()\s*\*", text) or words.count("select") < words.count("from")
    if everything or not {"select"} & set(words) or {"columns", "summarize", "describe", "pivot"} & set(words):
        return known
    named = [name for name in known if name in words]
    return named or [min(known, key=lambda name: (name != "flags", name))]
