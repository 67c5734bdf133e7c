"""Rows of a trace as batches of pyarrow, with the types that a schema asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyspark_wstrace.columns import HOST, TIME, TRACE
from pyspark_wstrace.request import folders_of, path_of
from wstrace.batch import Batch, names_of
from wstrace.errors import TraceFileError, missing
from wstrace.schema import Column
from wstrace_msgpack.read.trace import TraceFile

#: The columns that are no stored ones, beside the folders of a path.
_MADE = (TIME, HOST, TRACE)


def pyarrow() -> Any:
    """The module pyarrow. Raises Unavailable with the command that installs it."""
    try:
        import pyarrow
    except ImportError as error:
        raise missing("pyarrow", error, "pip install 'wstrace[spark]'") from None
    return pyarrow


class RowConverter:
    """Converts the batches of one trace.

    Args:
        trace: the trace. path: its path or URL.
        types: name -> Spark's type of each column.
    """

    def __init__(self, trace: TraceFile, path: str, stream: str, types: Mapping[str, str]) -> None:
        self._arrow = arrow = pyarrow()
        self._path, self._types = path, types
        self._kinds = {"bigint": arrow.int64(), "int": arrow.int32(), "smallint": arrow.int16(),
                       "string": arrow.string(), "timestamp_ntz": arrow.timestamp("us")}  # fmt: skip
        self._schema = trace.schema(stream)
        info = trace.info
        host = str(info.host.get("name") or "")
        self._clock = info.clock
        self._hosts = arrow.array([*(info.hosts or (host,)), None], arrow.string())
        self._same = {TRACE: path, **({} if info.hosts else {HOST: host}), **folders_of(path)}
        self._names: dict[object, tuple[int, Any]] = {}

    def __call__(self, batch: Batch) -> Any:
        """A RecordBatch of these rows, in memory of Arrow's own; columns that the batch lacks are null.

        It is a copy because memory of numpy is freed with Python's lock alone. A task of Sail 0.7.2 holds that lock
        while it waits for room in its queue. Where the threads that empty the queues then wait for the lock, to free
        other batches, nothing goes on.
        """
        arrays = [self._array(batch, name, kind) for name, kind in self._types.items()]
        found = self._arrow.RecordBatch.from_arrays(arrays, names=list(self._types))
        return self._arrow.ipc.read_record_batch(found.serialize(), found.schema)

    def _array(self, batch: Batch, name: str, kind: str) -> Any:
        arrow, n = self._arrow, len(batch)
        wanted = self._kinds.get(kind)
        if wanted is None:
            raise TraceFileError(f"{self._path}: the column {name!r} is no {kind}", "leave the schema to the source")
        if name in self._same:
            found = arrow.repeat(arrow.scalar(self._same[name], arrow.string()), n)
        elif name == HOST:
            hosts = batch.columns.get("host", np.zeros(n, np.uint32))
            found = self._hosts.take(arrow.array(np.minimum(hosts, len(self._hosts) - 1)))
        elif name == TIME and "time_ns" in batch:
            offset = self._clock.offset(batch.window[0])
            found = arrow.array((batch["time_ns"].astype(np.int64) + offset) // 1000).cast(self._kinds["timestamp_ntz"])
        elif name not in batch:
            return arrow.nulls(n, wanted)
        else:
            found = self._stored(batch, name)
        if found.type != wanted and "string" in (str(found.type), kind):
            raise self._refused(name, str(found.type), kind)
        try:
            return found.cast(wanted)
        except arrow.ArrowInvalid:
            raise self._refused(name, str(found.type), kind) from None

    def _refused(self, name: str, found: str, wanted: str) -> TraceFileError:
        return TraceFileError(
            f"{self._path}: the column {name!r} is {found} in this file, not {wanted}",
            "leave it out by option('columns', ...), or name its type in .schema(...)",
        )

    def _stored(self, batch: Batch, name: str) -> Any:
        column = self._schema.column(name) or Column(name, "u64", "count")
        values = batch[name]
        space = column.words or column.semantic
        known = self._names.get(space)
        size = len(batch.strings)
        if known is None or known[0] != size:  # a trace's marks may coin names while it is read
            names = names_of(column, batch.strings)
            made = None if names is None else self._arrow.array(names, self._arrow.string())
            known = self._names[space] = size, made
        if known[1] is not None:
            return known[1].take(self._arrow.array(values))
        if values.dtype == np.dtype("<u8"):
            return self._arrow.array(values.view("<i8"))  # its bits
        return self._arrow.array(values)


def stored_columns(types: Mapping[str, str], known: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns to read of a file for those of a schema; at least one that costs little, to count its rows."""
    wanted = {name for name in types if name not in _MADE}
    if TIME in types:
        wanted.add("time_ns")
    if HOST in types:
        wanted.add("host")
    found = tuple(name for name in known if name in wanted)
    return found or tuple(name for name in known if name in ("flags", "pages"))[:1] or tuple(known)[:1]


def ledger_rows(place: Any, types: Mapping[str, str]) -> Any:
    """What one file recorded and lost: a row for each stage of its ledger; of one that cannot be read, why not."""
    arrow = pyarrow()
    path = path_of(place)
    rows: list[dict[str, Any]] = []
    same: dict[str, Any] = {TRACE: path}
    try:
        with TraceFile([place]) as trace:
            same |= {HOST: str(trace.header.host.get("name") or ""), "state": trace.state}
            ledger = trace.ledger
            rows = [{"stage": stage, "who": who, "n": n, "is_loss": ledger.is_loss(stage)}
                    for stage, who, n in ledger.rows()]  # fmt: skip
    except TraceFileError as error:
        same["state"] = "unreadable"
        rows = [{"stage": "file_unreadable", "who": str(error), "n": 1, "is_loss": True}]
    kinds = {"string": arrow.string(), "bigint": arrow.int64(), "boolean": arrow.bool_()}
    same |= folders_of(path)
    arrays = [arrow.array([{**same, **row}.get(name) for row in rows], kinds[kind]) for name, kind in types.items()]
    return arrow.RecordBatch.from_arrays(arrays, names=list(types))
