"""SQL over a trace: each stream is a DuckDB table, streamed from the file with the columns that a query names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from wstrace.errors import TraceFileError, Unavailable, UsageError
from wstrace.plugins import default_plugins
from wstrace.text import printable
from wstrace_msgpack.interchange.tables import tables_of
from wstrace_msgpack.read.trace import open_trace


class Answer(NamedTuple):
    """The result of a query.

    Attributes:
        names: the column names.
        rows: the rows, each a tuple of values.
        incomplete: what the trace file lacks, in words; "" for nothing.
    """

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
    """Yields the answer to one query over a trace file, or over a file that `convert` wrote (.parquet).

    Raises:
        Unavailable: the package duckdb is not installed.
        UsageError: DuckDB refuses the query.
        TraceFileError: the file cannot be read, or is no trace.
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
            for name, rows in tables_of(trace, sql).items():
                connection.register(printable(name), rows)
            yield _answer(module, connection, sql)._replace(incomplete=trace.info.incomplete)
    finally:
        connection.close()


def _reader(path: str) -> str:
    """DuckDB's table function for the file format of a path; "" for a trace file."""
    formats = default_plugins().formats
    return next((found.sql for suffix, (_, found) in formats.items() if path.lower().endswith(suffix)), "")


def _confine(connection: Any, *paths: str) -> None:
    """Forbids queries to read other files and to load extensions, so that a query of unknown origin is harmless."""
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
