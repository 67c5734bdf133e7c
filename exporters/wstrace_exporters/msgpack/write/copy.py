"""Copies traces into one new trace, streamed, for `convert`. The new file keeps their times and hosts."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary, Recoding, Translation, recoded
from wstrace.errors import OutputError
from wstrace.ledger import Ledger
from wstrace.schema import ID_SPACES, MAPPING, MARK, PROCESS, SEMANTICS, TABLES, Column
from wstrace.table import Selection
from wstrace_exporters.msgpack.read.decoder import Decoder
from wstrace_exporters.msgpack.read.description import combined
from wstrace_exporters.msgpack.read.ids import Lookup
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
    """
    first = traces[0]
    strings = Dictionary()
    writer = TraceWriter(Parts(output, like=first.header, force=force), strings, mappings=_ALL_MAPPINGS)
    hosts = [_hosts(trace) for trace in traces]
    several = sum(map(len, hosts)) > 1
    base = 0
    bases = {space: 0 for space, table in ID_SPACES.items() if table}
    streams = []
    for number, trace in enumerate(traces):
        renumbered = {}
        for space in bases if len(traces) > 1 else ():
            ids = _ids(trace, space)
            renumbered[space] = Lookup(ids, np.arange(bases[space] + 1, bases[space] + 1 + len(ids)), 0)
            bases[space] += len(ids)
        suffix = f"@{hosts[number][0] or base}" if several and len(hosts[number]) == 1 else ""
        moved = Moved(trace, strings, renumbered, _shift(first, trace), base if several else None, suffix,
                      alone=len(traces) == 1)  # fmt: skip
        base += len(hosts[number])
        writer.write(moved.batch(trace.mappings))
        for mark in trace.marks:
            kind = mark.get("m")
            if (not isinstance(kind, str) or kind not in _OWN_MARKS) and (kind != "clock" or trace is first):
                writer.copy_mark(moved.mark(mark))
        for table in TABLES:
            for batch in trace.batches(table):
                writer.write(moved.batch(batch))
        streams += [moved.batches(decoder) for decoder in trace.decoders(Selection())]
    if several:
        writer.copy_mark({"m": "hosts", "t": 0, "hosts": [name for names in hosts for name in names]})
    for batch in heapq.merge(*streams, key=lambda batch: batch.window[0]):
        writer.write(batch)
    writer.settle()
    ledger, facts = _ledger(traces), _facts(traces)
    missing = ""
    if writer.dropped:
        missing = f"{output} lacks {writer.dropped:,} records: {writer.why_dropped}"
        ledger = {**ledger, "failed_lane:msgpack": ledger.get("failed_lane:msgpack", 0) + writer.dropped}
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
        renumbered: semantic -> the translation of ids of that space to those of the new file.
        shift: nanoseconds to add to times.
        host: the number of the trace's first host in the new file; None = the new file has one host only.
        suffix: text to append to the names of processes.
        alone: whether the new file is made of this trace only. If not, columns of an unknown semantic are left out,
            because they may be ids that mean something else in each file.
    """

    def __init__(
        self,
        trace: TraceFile,
        strings: Dictionary,
        renumbered: Mapping[str, Recoding],
        shift: int,
        host: int | None,
        suffix: str,
        *,
        alone: bool,
    ) -> None:
        self._strings, self._shift, self._host, self._alone = strings, shift, host, alone
        self._spaces: dict[str, Recoding] = {
            "str": Translation(trace.strings, strings),
            **renumbered,
        }
        if shift:
            self._spaces["ns"] = self._later
        self._of_processes: dict[str, Recoding] = {**self._spaces, "str": Translation(trace.strings, strings, suffix)}

    def batches(self, decoder: Decoder) -> Iterator[Batch]:
        """Yields the rows of a part, without those of schema.TABLES, which precede all others in the new file."""
        for batch in decoder.batches():
            if batch.schema.name not in TABLES:
                yield self.batch(batch)

    def _later(self, times: NDArray[Any]) -> NDArray[Any]:
        return (times.astype("<i8") + self._shift).astype("<u8")

    def _is_kept(self, column: Column | None) -> bool:
        return column is None or not (column.derived or (column.semantic not in SEMANTICS and not self._alone))

    def batch(self, batch: Batch) -> Batch:
        """The batch with the new file's ids, times and hosts, without derived columns."""
        schema = batch.schema
        stored = {name: batch[name] for name in batch if self._is_kept(schema.column(name))}
        columns = recoded(schema, stored, self._of_processes if schema.name == PROCESS.name else self._spaces)
        if self._host is not None and schema.name not in (MAPPING.name, MARK.name):
            columns["host"] = np.minimum(columns.get("host", np.zeros(len(batch), "<u2")), _HOSTS).astype("<u2")
            columns["host"] += np.uint16(self._host)
        window = (self._time(batch.window[0]), self._time(batch.window[1]))
        part = batch.snapshot
        if part is not None:
            part = part._replace(time_ns=self._time(part.time_ns), host=part.host + (self._host or 0))
        return Batch(
            schema, columns, window=window, lost=batch.lost, strings=self._strings, snapshot=part, rows=len(batch)
        )

    def mark(self, mark: Mapping[str, Any]) -> dict[str, Any]:
        """The mark with its times on the new file's clock."""
        moved = dict(mark)
        for key in _TIMES:
            if type(moved.get(key)) is int:
                moved[key] = self._time(moved[key])
        return moved

    def _time(self, ns: int) -> int:
        return int(time64(ns + self._shift))


def _ids(trace: TraceFile, space: str) -> NDArray[Any]:
    """The ids of the rows of an id space's table in a trace, distinct, ascending, u32."""
    table = ID_SPACES[space]
    key = next(column.name for column in trace.schema(table).columns if column.semantic == space)
    given = [batch[key] for batch in trace.batches(table, [key]) if key in batch]
    ids = distinct(np.concatenate(given)) if given else np.empty(0, "<u4")
    found: NDArray[Any] = ids[ids != 0]
    return found


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
    hosts = next((mark.get("hosts") for mark in trace.marks if mark.get("m") == "hosts"), None)
    names = hosts if isinstance(hosts, list) and hosts else [trace.header.host.get("name", "")]
    return [str(name) for name in names[:_HOSTS]]


def _facts(traces: Sequence[TraceFile]) -> dict[str, Any]:
    """The combined facts of all traces; the resource usage only if every trace has facts."""
    return combined([trace.facts for trace in traces if trace.facts], len(traces))


def _ledger(traces: Sequence[TraceFile]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for trace in traces:
        total.update(trace.ledger.as_dict())
    return Ledger.from_dict(dict(total)).as_dict()
