"""SQL over a trace: each stream is a DuckDB table, streamed from the file with the columns that a query names."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from wstrace.errors import LimitError, UsageError, missing
from wstrace.plugins import own_platform
from wstrace.text import printable
from wstrace_exporters.msgpack.interchange.tables import Rows, tables_of
from wstrace_exporters.msgpack.read.trace import open_trace

#: Bytes of address space. DuckDB starts a thread for each CPU: a query of few rows had 339 MB in all with two threads,
#: and 601 MB with 32 (VmPeak, Linux 6.18). Of 600,000 rows, DuckDB 1.5 hung where the limit was 600,000 KiB, and in no
#: go from 760,000 KiB on, of which it keeps a quarter of what is beyond the rest: Arrow's rows are not in its account.
_BESIDE, _OF_THREAD, _DATABASE = 448 << 20, 10 << 20, 128 << 20


class Answer(NamedTuple):
    """The result of a query.

    names: the column names. rows: the rows, each a tuple of values. incomplete: what the trace file lacks, in words; ""
    for nothing.
    """

    names: list[str]
    rows: list[tuple[Any, ...]]
    incomplete: str = ""


def duckdb() -> Any:
    """The module duckdb. Raises Unavailable with the command that installs it."""
    try:
        import duckdb
    except ImportError as error:
        raise missing("duckdb", error, "pip install 'wstrace[sql]'") from None
    return duckdb


@contextmanager
def connect(path: str, sql: str) -> Iterator[Answer]:
    """Yields the answer to one query over a trace file.

    Raises Unavailable: the package duckdb is not installed, or a limit of this process leaves no room for it;
    LimitError: there is no memory for the answer; UsageError: DuckDB refuses the query; TraceFileError: the file cannot
    be read, or is no trace.
    """
    within = _within_our_limit()
    module = duckdb()
    try:
        connection = module.connect(":memory:", config=within)
    except module.Error as error:  # as in a working directory that was deleted
        raise UsageError(f"query: {str(error).splitlines()[0]}") from None
    try:
        _confine(connection)
        with open_trace(path) as trace:
            tables = tables_of(trace, sql)
            for name, rows in tables.items():
                connection.register(printable(name), rows)
            yield _answer(module, connection, sql, tables.values())._replace(incomplete=trace.info.incomplete)
    except module.OutOfMemoryException as error:
        raise LimitError(
            f"query: {str(error).splitlines()[0]}",
            "ask for less at once, or allow more memory: ulimit -v, or the limit of the container",
        ) from None
    finally:
        connection.close()


def _within_our_limit() -> dict[str, str]:
    """The settings with which DuckDB stays below a limit of this process; {} = there is none.

    Where the system gives it nothing, DuckDB 2.0 ends the process (SIGSEGV) as often as it says so.
    Raises Unavailable: the limit leaves no room for any query.
    """
    platform, beside = own_platform(), _BESIDE + _OF_THREAD * (os.cpu_count() or 1)
    left = platform.room(beside + _DATABASE, "a query") if platform is not None else None
    return {} if left is None else {"memory_limit": f"{(left - beside) // 4_000_000}MB"}


def _confine(connection: Any) -> None:
    """Forbids queries to read files and to load extensions, so that a query of unknown origin is harmless."""
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """While DuckDB works, a signal ends the process at once: Python sees none before a query has its answer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _answer(module: Any, connection: Any, sql: str, tables: Iterable[Rows] = ()) -> Answer:
    try:
        with _ended_by_signals():
            result = connection.execute(sql)
            if result is None:
                raise UsageError("query: there is no question in this SQL")
            return Answer([column[0] for column in result.description], result.fetchall())
    except module.OutOfMemoryException:
        raise
    except module.Error as error:
        for rows in tables:
            if rows.refused is not None:
                raise rows.refused from None
        raise UsageError(f"query: {' '.join(str(error).splitlines()[:2])}") from None  # the second has what is near
