"""Reads pieces of trace files as Arrow batches, in the tasks of a cluster."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import unquote

import numpy as np
import pyarrow as arrow
from pyspark.sql import datasource as spark

from wstrace.batch import Batch, names_of
from wstrace.errors import TraceFileError, TraceFileNotFound, UsageError
from wstrace.options import converted, keyword_options
from wstrace.schema import STREAMS, Column
from wstrace.table import Selection
from wstrace.text import nearest
from wstrace_exporters.msgpack.read.decoder import columns_of
from wstrace_exporters.msgpack.read.discover import files_of
from wstrace_exporters.msgpack.read.trace import TraceFile
from wstrace_exporters.msgpack.storage.urls import is_url

#: The stream that says what became of the records of each file.
LEDGER = "ledger"
#: Spark has no unsigned types; 64 bits keep their bits, so that an address of the kernel is negative.
_SIGNED = {"u8": "short", "u16": "integer", "u32": "long", "u64": "long", "i64": "long"}
_ARROW = {"short": "int16", "integer": "int32", "long": "int64", "string": "string", "boolean": "bool_"}
_LEDGER = {"stage": "string", "who": "string", "n": "long", "is_loss": "boolean", "state": "string"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of a source; Spark gives their names in lower case."""

    path: str = ""
    stream: str = "page_fault"
    starttime: str | None = None
    endtime: str | None = None
    pid: tuple[int, ...] | None = None
    columns: tuple[str, ...] | None = None
    rowsperpartition: int = 2_000_000
    ignorecorruptfiles: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """What these options ask for. Raises UsageError for an unknown option or a wrong value."""
        given = {name.lower(): value for name, value in options.items()}
        request = cls(**converted(given, keyword_options(Request), "the source wstrace"))
        if not request.path:
            raise UsageError("the source wstrace needs a path", 'write .load("folder/*.wst")')
        for text in (request.starttime, request.endtime):
            _wall_ns(text)
        return request

    def places(self) -> list[Any]:
        """The files that the path stands for. Raises UsageError for a scheme such as Spark's own s3a://."""
        found: list[str] = []
        for one in map(str.strip, self.path.split(",")):
            if not is_url(one) and re.match(r"[a-z][a-z0-9+.-]*:/", one):
                raise UsageError(f"{one}: no such store is known", "write s3://, gs:// or az://, or a path")
            path = one if is_url(one) else os.path.abspath(one)  # executors have working directories of their own
            path = os.path.join(glob.escape(path), "**", "*.wst") if os.path.isdir(path) else path  # noqa: PTH112
            local = glob.has_magic(path) and not is_url(path)
            found += sorted(glob.glob(path, recursive=True)) if local else [path]  # noqa: PTH207
        if not found:
            raise TraceFileNotFound(self.path)
        return files_of(found)


def types_of(request: Request) -> dict[str, str]:
    """name -> Spark's type of each column, as this version knows it. Raises UsageError for one that is unknown."""
    known = STREAMS.get(request.stream)
    if request.stream != LEDGER and (known is None or known.internal):
        raise UsageError(f"there is no stream {request.stream!r}", nearest(request.stream, [*STREAMS, LEDGER]))
    columns = () if known is None else columns_of(known)
    found = {c.name: "string" if c.semantic == "str" or c.words else _SIGNED[c.type] for c in columns} or dict(_LEDGER)
    found |= {"time": "timestamp_ntz"} if "time_ns" in found else {}
    found |= dict.fromkeys(["host", "trace", *_folders_of(_path_of(request.places()[0]))], "string")
    for name in request.columns or ():
        if name not in found:
            raise UsageError(f"the stream {request.stream} has no column {name!r}", nearest(name, found))
    return found if request.columns is None else {name: found[name] for name in request.columns}


class WstraceReader(spark.DataSourceReader):
    """Reads these columns of the wanted rows."""

    def __init__(self, request: Request, names: list[str]) -> None:
        self.request, self.types = request, types_of(replace(request, columns=tuple(names)))

    def partitions(self) -> list[Any]:
        """The tasks: of large files pieces of rowsPerPartition rows, of small ones several."""
        places, limit = self.request.places(), max(1, self.request.rowsperpartition)
        if self.request.stream == LEDGER:
            return [spark.InputPartition([(place, None)]) for place in places]
        with ThreadPoolExecutor(16, "wstrace-index") as pool:
            cuts = zip(places, pool.map(self._cut, places), strict=True)
            pieces = [(place, piece) for place, some in cuts for piece in some]
        ends = np.cumsum([rows for _, (_, _, rows) in pieces])
        tasks: dict[int, list[tuple[Any, Any]]] = {}
        for end, piece in zip(ends.tolist(), pieces, strict=True):
            tasks.setdefault((end - 1) // limit, []).append(piece)
        return [spark.InputPartition(some) for some in tasks.values()]

    def read(self, partition: Any) -> Iterator[Any]:
        """Yields the rows of a task as batches of pyarrow."""
        for place, piece in partition.value:
            if self.request.stream == LEDGER:
                yield self._ledger(place)
                continue
            with TraceFile([place]) as trace:
                trace.trusting = True  # every byte that is read is checked, but no others are for its description
                (decoder,) = trace.decoders(self.selection(trace))
                for batch in decoder.batches(*piece[:2]):
                    if len(batch):
                        yield self._converted(trace, _path_of(place), batch)

    def selection(self, trace: TraceFile) -> Selection:
        """The rows that are wanted of a trace, on its own clock."""
        request = self.request
        wanted = {"time_ns" if name == "time" else name for name in self.types}
        known = [*(column.name for column in columns_of(trace.schema(request.stream))), "host"]
        columns = tuple(name for name in known if name in wanted) or tuple(known[:1])
        clock, begin = trace.info.clock, trace.begin_ns
        start, end = (None if at is None else max(0, at - clock.offset(at - clock.offset(begin)))
                      for at in map(_wall_ns, (request.starttime, request.endtime)))  # fmt: skip
        return Selection(request.stream, columns, start, end, request.pid)

    def _cut(self, place: Any) -> list[tuple[int, int, int]]:
        """The pieces of a file with what is wanted, by its index: the offsets of the first and last frame, the rows."""
        try:
            with TraceFile([place]) as trace:
                (decoder,) = trace.decoders(self.selection(trace))
                entries = decoder.part.chosen(decoder.kinds, decoder.selection)
                numbers = (np.cumsum(entries["n"], dtype="i8") - entries["n"]) // max(1, self.request.rowsperpartition)
                pieces = np.split(entries, np.flatnonzero(np.diff(numbers)) + 1)
                return [(int(some["offset"][0]), int(some["offset"][-1]), int(some["n"].sum()))
                        for some in pieces if len(some)]  # fmt: skip
        except TraceFileError:
            if self.request.ignorecorruptfiles:
                return []
            raise

    def _converted(self, trace: TraceFile, path: str, batch: Batch) -> Any:
        """A RecordBatch of these rows; columns that the batch lacks are null.

        It is in Arrow's own memory: numpy's is freed with Python's lock alone, which a task of Sail holds while it
        waits for room in its queue.
        """
        n, hosts = len(batch), trace.info.hosts
        same = {"trace": path, **_folders_of(path)}
        if not hosts:
            same = {"host": str(trace.info.host.get("name") or ""), **same}
        found: dict[str, Any] = {}
        for name, kind in self.types.items():
            values: Any = batch.columns.get("time_ns" if name == "time" else name)
            column = trace.schema(self.request.stream).column(name) or Column(name, "u64", "count")
            if name in same:
                values = arrow.repeat(same[name], n)
            elif name == "host":
                codes = np.zeros(n, np.uint32) if values is None else np.minimum(values, len(hosts))
                values = arrow.array([*hosts, None], arrow.string()).take(arrow.array(codes))
            elif values is None:
                values = arrow.nulls(n)
            elif name == "time":
                values = arrow.array((values.astype("<i8") + trace.info.clock.offset(batch.window[0])) // 1000)
            elif (words := names_of(column, batch.strings)) is not None:
                values = arrow.array(words, arrow.string()).take(arrow.array(values))
            else:
                values = arrow.array(values.view("<i8") if values.dtype == np.dtype("<u8") else values)
            found[name] = values.cast(arrow.timestamp("us") if name == "time" else getattr(arrow, _ARROW[kind])())
        rows = arrow.RecordBatch.from_pydict(found)
        return arrow.ipc.read_record_batch(rows.serialize(), rows.schema)

    def _ledger(self, place: Any) -> Any:
        """What one file recorded and lost: a row for each stage of its ledger; of one that cannot be read, why not."""
        path = _path_of(place)
        try:
            with TraceFile([place]) as trace:
                same = {"host": str(trace.header.host.get("name") or ""), "state": trace.state}
                stages = [(stage, who, n, trace.ledger.is_loss(stage)) for stage, who, n in trace.ledger.rows()]
        except TraceFileError as error:
            same, stages = {"state": "unreadable"}, [("file_unreadable", str(error), 1, True)]
        same |= {"trace": path, **_folders_of(path)}
        rows = [{**same, **dict(zip(_LEDGER, stage, strict=False))} for stage in stages]
        schema = arrow.schema([(name, getattr(arrow, _ARROW[kind])()) for name, kind in self.types.items()])
        return arrow.RecordBatch.from_pylist(rows, schema)


def _path_of(place: Any) -> str:
    """The path of a file, or its URL without credentials."""
    return str(getattr(place, "shown", place))


def _folders_of(path: str) -> dict[str, str]:
    """The `key=value` folders of a path: what Hive calls partitions."""
    return {key: unquote(value) for key, value in re.findall(r"(?:^|/)([A-Za-z_]\w*)=([^/]*)(?=/)", path)}


def _wall_ns(text: str | None) -> int | None:
    """The nanoseconds since 1970 of a time in ISO 8601."""
    try:
        at = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text}: it is no time", "write a time such as 2026-11-22T10:00:00Z") from None
    return None if at is None else round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e6) * 1000
