"""Copies traces into one new trace, streamed, for `convert`. The new file keeps their times and hosts."""

from __future__ import annotations

import functools
import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch, Dictionary, Recoding, Translation, recoded
from wstrace.errors import OutputError, TraceFileError
from wstrace.schema import ID_SPACES, MAPPING, MARK, PROCESS, SEMANTICS, TABLES, Column
from wstrace.table import Selection
from wstrace_exporters.msgpack.read.decoder import Decoder
from wstrace_exporters.msgpack.read.description import combined, hosts_of
from wstrace_exporters.msgpack.read.part import time64
from wstrace_exporters.msgpack.read.trace import TraceFile
from wstrace_exporters.msgpack.write.parts import Parts
from wstrace_exporters.msgpack.write.writer import TraceWriter

_TIMES = ("t", "monotonic", "boottime")
#: At most this many hosts of a merged trace are distinguished.
_HOSTS = 1 << 12
#: All mappings of the traces are in memory while they are read.
_ALL_MAPPINGS = 1 << 32
#: Marks that are not copied, because the new file gets its own.
_OWN_MARKS = frozenset(("facts", "ledger", "schema", "user", "hosts"))


def copy(traces: Sequence[TraceFile], output: str, *, force: bool = False) -> int:
    """Writes all that can be read of the traces to one new file, in the order of time.

    Args:
        traces: the traces, at least one; the first one's clock is that of the new file.
        output: the path of the new file.
        force: whether an existing file may be overwritten.

    Returns:
        The number of rows of the new file.

    Raises:
        OutputError: the file cannot be created, or lacks records; such a file can be read, and says what it lacks.
        TraceFileError: the ids of the traces are too many together.
    """
    first, strings = traces[0], Dictionary()
    writer = TraceWriter(Parts(output, like=first.header, force=force), strings, mappings=_ALL_MAPPINGS)
    hosts = [_hosts(trace) for trace in traces]
    several = sum(map(len, hosts)) > 1
    n_hosts, streams = 0, []
    bases = {space: 0 for space, table in ID_SPACES.items() if table}
    for trace, names in zip(traces, hosts, strict=True):
        moved = Moved(trace, strings, _shift(first, trace), n_hosts if several else None,
                      f"@{names[0] or n_hosts}" if several and len(names) == 1 else "",
                      dict(bases) if len(traces) > 1 else None)  # fmt: skip
        n_hosts += len(names)
        for space in bases if len(traces) > 1 else ():
            bases[space] += _top(trace, space)
            if bases[space] >= 1 << 32:
                raise TraceFileError(f"{trace.name}: its ids do not fit behind those of the others", "convert it alone")
        writer.write(moved.batch(trace.mappings))
        for mark in trace.marks:
            kind = mark.get("m")
            if (not isinstance(kind, str) or kind not in _OWN_MARKS) and (kind != "clock" or trace is first):
                times = {key: moved.time(at) for key in _TIMES if type(at := mark.get(key)) is int}
                writer.copy_mark({**mark, **times})
        for table in TABLES:
            for batch in trace.batches(table):
                writer.write(moved.batch(batch))
        streams += [moved.batches(decoder) for decoder in trace.decoders(Selection())]
    if several:
        writer.copy_mark({"m": "hosts", "t": 0, "hosts": [name for names in hosts for name in names]})
    for batch in heapq.merge(*streams, key=lambda batch: batch.window[0]):
        writer.write(batch)
    writer.settle()
    ledger = Counter[str]()
    for trace in traces:
        ledger.update(trace.ledger.as_dict())
    facts, missing = combined([trace.facts for trace in traces if trace.facts], len(traces)), ""
    if writer.dropped:
        missing = f"{output} lacks {writer.dropped:,} records: {writer.why_dropped}"
        ledger["failed_lane:msgpack"] += writer.dropped
        facts = {**facts, "incomplete": missing}
    writer.close(ledger, facts)
    if missing:
        raise OutputError(missing, "what is there can be read; free some space, and write it anew")
    return sum(writer.rows.values())


class Moved:
    """Translates one trace's batches to the ids, times and hosts of the new file.

    Args:
        trace: the trace.
        strings: the dictionary of the new file.
        shift: nanoseconds to add to times.
        host: the number of the trace's first host in the new file; None = the new file has one host only.
        suffix: text to append to the names of processes.
        bases: semantic -> what to add to ids; None = the new file is made of this trace only. If not, columns of an
            unknown semantic are left out, because they may be ids that mean something else in each file.
    """

    def __init__(
        self, trace: TraceFile, strings: Dictionary, shift: int, host: int | None, suffix: str,
        bases: Mapping[str, int] | None,
    ) -> None:  # fmt: skip
        self._strings, self._shift, self._host, self._alone = strings, shift, host, bases is None
        self._spaces: dict[str, Recoding] = {"str": Translation(trace.strings, strings)}
        for space, base in (bases or {}).items():
            self._spaces[space] = functools.partial(_behind, base)
        if shift:
            self._spaces["ns"] = lambda times: (times.astype("<i8") + shift).astype("<u8")
        self._of_processes: dict[str, Recoding] = {**self._spaces, "str": Translation(trace.strings, strings, suffix)}

    def batches(self, decoder: Decoder) -> Iterator[Batch]:
        """Yields the rows of a part, without those of schema.TABLES, which precede all others in the new file."""
        for batch in decoder.batches():
            if batch.schema.name not in TABLES:
                yield self.batch(batch)

    def _is_kept(self, column: Column | None) -> bool:
        return column is None or not (column.derived or (column.semantic not in SEMANTICS and not self._alone))

    def batch(self, batch: Batch) -> Batch:
        """The batch with the new file's ids, times and hosts, without derived columns."""
        schema, part = batch.schema, batch.snapshot
        stored = {name: batch[name] for name in batch if self._is_kept(schema.column(name))}
        columns = recoded(schema, stored, self._of_processes if schema.name == PROCESS.name else self._spaces)
        if self._host is not None and schema.name not in (MAPPING.name, MARK.name):
            columns["host"] = np.minimum(columns.get("host", np.zeros(len(batch), "<u2")), _HOSTS).astype("<u2")
            columns["host"] += np.uint16(self._host)
        window = (self.time(batch.window[0]), self.time(batch.window[1]))
        if part is not None:
            part = part._replace(time_ns=self.time(part.time_ns), host=part.host + (self._host or 0))
        return Batch(
            schema, columns, window=window, lost=batch.lost, strings=self._strings, snapshot=part, rows=len(batch)
        )

    def time(self, ns: int) -> int:
        """A time on the new file's clock, in ns."""
        return int(time64(ns + self._shift))


def _behind(base: int, ids: NDArray[Any]) -> NDArray[Any]:
    """The ids behind those of the traces before; 0 stays unknown."""
    return np.where(ids, ids + np.uint32(base), np.uint32(0))


def _top(trace: TraceFile, space: str) -> int:
    """The largest id of the rows of an id space's table in a trace."""
    table = ID_SPACES[space]
    key = next(column.name for column in trace.schema(table).columns if column.semantic == space)
    return max((int(batch[key].max()) for batch in trace.batches(table, [key]) if key in batch and len(batch)),
               default=0)  # fmt: skip


def _shift(first: TraceFile, other: TraceFile) -> int:
    """Nanoseconds from the clock of `other` to that of `first`: 0 within one boot, else by their wall clocks."""
    a, b = first.header, other.header
    if a.boot_id == b.boot_id and (a.boot_id or a.host == b.host):
        return 0
    offsets = [header.clock.get("realtime_offset_ns", 0) for header in (a, b)]
    if not all(type(offset) is int and abs(offset) < 1 << 62 for offset in offsets):
        return 0
    return int(offsets[1] - offsets[0])


def _hosts(trace: TraceFile) -> list[str]:
    """The names of a trace's hosts, one per boot; several if the trace was merged itself."""
    return list(hosts_of(trace.marks) or (str(trace.header.host.get("name", "")),))[:_HOSTS]
