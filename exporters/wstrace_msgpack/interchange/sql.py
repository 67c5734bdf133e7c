"""SQL over a trace: each stream is a DuckDB table, streamed from the file with the columns that a query names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from wstrace.analysis.blame.rows import Blame
from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.snapshots import LastSnapshots
from wstrace.analysis.stack_rows import STACKS, stack_rows
from wstrace.analysis.symbols import Symbolizer
from wstrace.arrow import Converter
from wstrace.batch import Batch, Dictionary
from wstrace.errors import TraceFileError, Unavailable, UsageError
from wstrace.interfaces import Context
from wstrace.plugins import default_plugins
from wstrace.schema import CALL_SITE, Schema
from wstrace.text import printable
from wstrace_msgpack.interchange.blame_tables import PAGES, UNSHARED, pages_batch, unshared_batch
from wstrace_msgpack.read.prefetch import Prefetched
from wstrace_msgpack.read.trace import TraceFile, open_trace

#: Streams that are tables even when the trace has no row of them.
ALWAYS = ("page_fault", "process", "mapping")


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
            for stream in sorted({*ALWAYS, *trace.streams} - {"mark"}):
                if not trace.columns_of(stream):  # a file may have rows of a stream without known columns
                    continue
                connection.register(printable(stream), Streamed(trace, stream, named_columns(trace, stream, sql)))
            if "resident" in trace.streams:
                connection.register("still_resident", StillResident(trace, "resident", _names(trace, "resident")))
            if CALL_SITE.name in trace.streams:
                connection.register(STACKS.name, NamedStacks(trace, sql))
            for schema, make in ((PAGES, pages_batch), (UNSHARED, unshared_batch)):
                if re.search(rf"\b{schema.name}\b", sql) and "page_fault" in trace.streams:
                    connection.register(schema.name, Blamed(trace, schema, make))
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


class Streamed:
    """A stream of a trace as an Arrow stream, which DuckDB may scan several times."""

    def __init__(self, trace: TraceFile, stream: str, columns: list[str]) -> None:
        self._trace, self._stream, self._columns = trace, stream, columns

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        batches = self._trace.batches(self._stream, self._columns)
        converter = Converter(batches.columns, self._trace.strings, Prefetched(batches))
        return converter.reader().__arrow_c_stream__(requested_schema)


class StillResident(Streamed):
    """The rows of `resident` from the last complete snapshot of each process, which all reports count."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        batches = self._trace.batches(self._stream, self._columns)
        snapshots: LastSnapshots[list[Batch]] = LastSnapshots(list, list.append)
        for batch in batches:
            snapshots.add(batch)
        parts = [part for _, counted in snapshots for part in counted]
        return Converter(batches.columns, self._trace.strings, parts).reader().__arrow_c_stream__(requested_schema)


class Blamed:
    """The table `pages` or `unshared`: computed from the whole trace, and only for a query that names it."""

    def __init__(self, trace: TraceFile, schema: Schema, make: Callable[[Blame, Dictionary], Batch]) -> None:
        self._trace, self._schema, self._make = trace, schema, make

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        trace = self._trace
        rows = self._make(trace.blame(), trace.strings)
        return (
            Converter(list(self._schema.columns), trace.strings, [rows]).reader().__arrow_c_stream__(requested_schema)
        )


class NamedStacks:
    """The table `stacks`: the call sites with their frames in clear, with the columns that a query names."""

    def __init__(self, trace: TraceFile, sql: str) -> None:
        self._trace = trace
        self._columns = chosen([column.name for column in STACKS.columns], sql)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        trace, tree = self._trace, CallTree()
        for batch in trace.batches(CALL_SITE.name):
            tree.learn(batch)
        symbolizer = Symbolizer(Context(resolvers=default_plugins().make_resolvers(), info=trace.info), live=False)
        symbolizer.learn(trace.mappings)
        rows = stack_rows(tree, trace.strings, self._columns, symbolizer)
        columns = [column for column in STACKS.columns if column.name in self._columns]
        return Converter(columns, trace.strings, [rows]).reader().__arrow_c_stream__(requested_schema)


def _names(trace: TraceFile, stream: str) -> list[str]:
    return [column.name for column in trace.columns_of(stream)]


def named_columns(trace: TraceFile, stream: str, sql: str) -> list[str]:
    """The columns of a stream whose names occur in a query, at least one; all when the query may mean all."""
    return chosen(_names(trace, stream), sql)


def chosen(known: list[str], sql: str) -> list[str]:
    """Those of the known columns whose names occur in a query, at least one; all when the query may mean all."""
    text = re.sub(r"count\s*\(\s*\*\s*\)", "count()", sql, flags=re.IGNORECASE).lower()
    words = re.findall(r"\w+", text)
    # A `from t` without select, summarize, describe, columns(...) or t as a value may mean all columns.
    everything = re.search(r"(?:select|distinct|,|\.|\()\s*\*", text) or words.count("select") < words.count("from")
    if everything or not {"select"} & set(words) or {"columns", "summarize", "describe", "pivot"} & set(words):
        return known
    named = [name for name in known if name in words]
    return named or [min(known, key=lambda name: (name != "flags", name))]
