"""Copies what can be read of trace files into one new trace, streamed, for `convert`."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np

from wstrace.batch import Batch, Recoding, Translation, recoded
from wstrace.errors import OutputError
from wstrace.schema import MAPPING, MARK, PROCESS, SEMANTICS, TABLES
from wstrace.table import Selection
from wstrace_exporters.msgpack.format.frames import Header
from wstrace_exporters.msgpack.read.decoder import Decoder
from wstrace_exporters.msgpack.read.ids import PartIds, by_id
from wstrace_exporters.msgpack.read.open_parts import boot_of
from wstrace_exporters.msgpack.read.part import Part, time64
from wstrace_exporters.msgpack.read.trace import TraceFile, hosts_of
from wstrace_exporters.msgpack.write.parts import Parts
from wstrace_exporters.msgpack.write.writer import TraceWriter

_TIMES = ("t", "monotonic", "boottime")
#: At most this many hosts of a merged trace are distinguished.
_HOSTS = 1 << 12
#: All mappings of the trace are in memory while it is read.
_ALL_MAPPINGS = 1 << 32
#: So many that a part takes their files, however many there are.
MAPPINGS_AT_ONCE = 1 << 14
#: Marks that are not copied, because the new file gets its own.
_OWN_MARKS = frozenset(("facts", "ledger", "schema", "user", "hosts"))


def copy(trace: TraceFile, output: str, *, force: bool = False) -> int:
    """Writes all that can be read of a trace to one new file, in the order of time, on the clock of its first part.

    trace: the trace, whose parts may be of several boots and hosts. output: the path of the new file. force: whether an
    existing file may be overwritten. Returns the number of rows of the new file. Raises OutputError: the file cannot be
    created, or lacks records; such a file can be read, and says what it lacks.
    """
    writer = TraceWriter(Parts(output, like=trace.header, force=force), trace.strings, mappings=_ALL_MAPPINGS)
    boots: dict[str, list[tuple[Part, PartIds]]] = {}
    for part, ids in trace.parts.with_ids():
        boots.setdefault(boot_of(part), []).append((part, ids))
    names_of = {boot: _hosts([part for part, _ in parts]) for boot, parts in boots.items()}
    several, hosts, streams = sum(map(len, names_of.values())) > 1, list[str](), []
    for boot, parts in boots.items():
        names = names_of[boot]
        suffix = f"@{names[0] or len(hosts)}" if several and len(names) == 1 else ""
        moved = Moved(trace, _shift(trace.header, parts[0][0].header), len(hosts) if several else None, suffix)
        mappings = moved.batch(Batch(MAPPING, by_id([ids.mappings for _, ids in parts]), strings=trace.strings))
        for first in range(0, len(mappings), MAPPINGS_AT_ONCE):
            writer.write(mappings.take(slice(first, first + MAPPINGS_AT_ONCE)))
        for mark in (mark for part, _ in parts for mark in part.marks()):
            kind = mark.get("m")
            if (not isinstance(kind, str) or kind not in _OWN_MARKS) and (kind != "clock" or not hosts):
                times = {key: moved.time(at) for key in _TIMES if type(at := mark.get(key)) is int}
                writer.copy_mark({**mark, **times})
        for table in TABLES:
            for part, ids in parts:
                for batch in Decoder(part, ids, Selection(table), trace.schema, trace.strings).batches():
                    writer.write(moved.batch(batch))
        streams += [moved.batches(Decoder(*one, Selection(), trace.schema, trace.strings)) for one in parts]
        hosts += names
    if several:
        writer.copy_mark({"m": "hosts", "t": 0, "hosts": hosts})
    for batch in heapq.merge(*streams, key=lambda batch: batch.window[0]):
        writer.write(batch)
    writer.settle()
    ledger, facts, missing = trace.ledger, trace.facts, ""
    if trace.missing_parts:
        facts = {**facts, "incomplete": trace.info.incomplete}
    if writer.dropped:
        missing = f"{output} lacks {writer.dropped:,} records: {writer.why_dropped}"
        ledger.add("failed_exporter", writer.dropped, "msgpack")
        facts = {**facts, "incomplete": missing}
    writer.close(ledger.as_dict(), facts)
    if missing:
        raise OutputError(missing, "what is there can be read; free some space, and write it anew")
    return sum(writer.rows.values())


class Moved:
    """Moves batches of one boot to the clock and the hosts of the new file.

    trace: their trace. Of several sessions, columns of an unknown semantic are left out, because they may be ids that
    mean something else in each session. shift: nanoseconds to add to times. host: the number of the boot's first host
    in the new file; None = the new file has one host only. suffix: text to append to the names of processes.
    """

    def __init__(self, trace: TraceFile, shift: int, host: int | None, suffix: str) -> None:
        self._strings, self._shift, self._host = trace.strings, shift, host
        self._alone = len({part.session for part in trace.parts}) == 1
        spaces: dict[str, Recoding] = {}
        if shift:
            spaces["ns"] = lambda times: (times.astype("<i8") + shift).astype("<u8")
        self._spaces, self._of_processes = spaces, dict(spaces)
        if suffix:
            self._of_processes["str"] = Translation(trace.strings, trace.strings, suffix)

    def batches(self, decoder: Decoder) -> Iterator[Batch]:
        """Yields the rows of a part, without those of schema.TABLES, which precede all others in the new file."""
        for batch in decoder.batches():
            if batch.schema.name not in TABLES:
                yield self.batch(batch)

    def batch(self, batch: Batch) -> Batch:
        """The batch with the new file's times and hosts, without derived columns."""
        schema, part = batch.schema, batch.snapshot
        stored: dict[str, Any] = {}
        for name in batch:
            column = schema.column(name)
            if column is None or not (column.derived or (column.semantic not in SEMANTICS and not self._alone)):
                stored[name] = batch[name]
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


def _shift(a: Header, b: Header) -> int:
    """Nanoseconds from the clock of `b` to that of `a`: 0 within one boot, else by their wall clocks."""
    if a.boot_id == b.boot_id and (a.boot_id or a.host == b.host):
        return 0
    offsets = [header.clock.get("realtime_offset_ns", 0) for header in (a, b)]
    if not all(type(offset) is int and abs(offset) < 1 << 62 for offset in offsets):
        return 0
    return int(offsets[1] - offsets[0])


def _hosts(parts: list[Part]) -> list[str]:
    """The names of the hosts of parts of one boot, one per boot; several if these were merged themselves."""
    marks = [mark for part in parts for mark in part.marks("hosts")]
    return list(hosts_of(marks) or (str(parts[0].header.host.get("name", "")),))[:_HOSTS]
