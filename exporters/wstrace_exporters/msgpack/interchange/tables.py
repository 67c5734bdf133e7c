"""The tables of a query: streams of a trace and the views on them, each as an Arrow stream that is read on demand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.composition import Composition
from wstrace.analysis.moments import LastSnapshots
from wstrace.analysis.stack_views import STACKS, stack_rows
from wstrace.analysis.symbols import symbolizer_of
from wstrace.arrow import Converter
from wstrace.batch import Batch
from wstrace.errors import WstraceError
from wstrace.schema import ADDRESS_SPACE, CALL_SITE, MARK, RESIDENT_PAGES, STREAMS, Column, Schema
from wstrace_exporters.msgpack.interchange.blame_tables import PAGES, UNSHARED, pages_batch, unshared_batch
from wstrace_exporters.msgpack.interchange.views import FAULTS, PROCESSES, fault_batches, processes_batch
from wstrace_exporters.msgpack.read.decoder import COMMON, columns_of
from wstrace_exporters.msgpack.read.trace import TraceFile, open_trace

#: Streams that are tables even when the trace has no row of them.
ALWAYS = ("page_fault", "process", "mapping")
STILL_RESIDENT = Schema("still_resident", (*COMMON, *RESIDENT_PAGES.columns))
_UNITS = {"addr": "address", "id": "number", "map": "id of mapping", "stack": "id of stacks", "bits": "flags"}
_FEW = 8  # names that fit in a line
Make = Callable[[TraceFile, list[str]], Iterable[Batch]]


def known_tables(path: str = "") -> dict[str, tuple[str, Sequence[Column]]]:
    """The tables and views of a query: name -> what its rows are, and its columns.

    path: a trace file, whose tables are given; "" = all that wstrace knows.
    """
    abouts = {view.name: about for view, (about, _) in VIEWS.items()} | {name: s.about for name, s in STREAMS.items()}
    if path:
        with open_trace(path) as trace:
            return {name: (abouts.get(name, ""), rows.columns) for name, rows in tables_of(trace).items()}
    streams = (schema for schema in STREAMS.values() if not schema.internal and schema not in (ADDRESS_SPACE, MARK))
    columns = {schema.name: schema.columns for schema in VIEWS} | {s.name: columns_of(s) for s in streams}
    return {name: (abouts[name], found) for name, found in columns.items()}


def unit(column: Column) -> str:
    """What the values of a column are, in a query: names and words are text there."""
    if column.words or column.semantic == "str":
        return "text"
    return column.unit or _UNITS.get(column.semantic, column.semantic)


def meaning(column: Column) -> str:
    """What a column says, with its words where these are few."""
    words = [word for word in column.words if word]
    return f"{column.about}: {', '.join(words)}" if 0 < len(words) <= _FEW else column.about


def tables_of(trace: TraceFile, sql: str = "") -> Mapping[str, Rows]:
    """The tables of a trace, with the columns that a query names; "" = all columns."""
    found: dict[str, Rows] = {}
    for stream in sorted({*ALWAYS, *trace.streams} - {MARK.name}):
        columns = tuple(trace.columns_of(stream))  # a file may have rows of a stream without known columns
        if columns:
            common = COMMON if trace.schema(stream).snapshot else ()
            found[stream] = Rows(trace, (*common, *columns), sql, _stream(stream))
    return found | {view.name: Rows(trace, view.columns, sql, make) for view, (_, make) in VIEWS.items()}


class Rows:
    """A table as an Arrow stream with the columns that a query names. DuckDB may read it several times, or never.

    refused: why its rows could not be made.
    """

    def __init__(self, trace: TraceFile, columns: tuple[Column, ...], sql: str, make: Make) -> None:
        names = chosen([column.name for column in columns], sql) if sql else [column.name for column in columns]
        self._trace, self._make = trace, make
        self.refused: WstraceError | None = None
        self.columns = [column for column in columns if column.name in names]

    def __arrow_c_schema__(self) -> Any:
        return self._converter([]).schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._converter(self._batches()).reader().__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[Batch]:
        try:
            yield from self._make(self._trace, [column.name for column in self.columns])
        except WstraceError as error:
            self.refused = error  # DuckDB passes its text on alone
            raise

    def _converter(self, rows: Iterable[Batch]) -> Converter:
        return Converter(self.columns, self._trace.strings, rows)


def _stream(stream: str) -> Make:
    return lambda trace, columns: trace.batches(stream, columns)


def _still_resident(trace: TraceFile, columns: list[str]) -> Iterator[Batch]:
    snapshots: LastSnapshots[list[Batch]] = LastSnapshots(list, list.append)
    for batch in trace.batches(RESIDENT_PAGES.name, [*columns, "flags"]):
        snapshots.add(batch)
    for _, parts in snapshots:
        yield from parts


def _stacks(trace: TraceFile, columns: list[str]) -> list[Batch]:
    tree = CallTree()
    for batch in trace.batches(CALL_SITE.name):
        tree.learn(batch)
    symbolizer = symbolizer_of(trace.info, [trace.mappings])
    return [stack_rows(tree, trace.strings, columns, symbolizer)]


#: view -> what its rows are, and what makes them
VIEWS: dict[Schema, tuple[str, Make]] = {
    FAULTS: ("every page fault, with names and words for ids, codes and flags", fault_batches),
    PAGES: (
        "every page that was resident at the end, with the fault that brought it",
        lambda trace, _: [pages_batch(Composition(trace), trace.strings)],
    ),
    STACKS: ("the call sites that `stack` and `native_stack` name, with their frames in clear", _stacks),
    PROCESSES: ("every process of the trace", lambda trace, _: [processes_batch(trace)]),
    UNSHARED: (
        "every copy of a page that processes had shared since a fork",
        lambda trace, _: [unshared_batch(Composition(trace), trace.strings)],
    ),
    STILL_RESIDENT: (
        "the rows of `resident` of the last whole snapshot of each process, as report and diff count them",
        _still_resident,
    ),
}


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
