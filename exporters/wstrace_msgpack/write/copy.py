"""Traces into one new trace: what `recover` and `merge` do, streamed. The new file keeps their time and host."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch, Dictionary
from wstrace.ledger import Ledger
from wstrace_msgpack.read.decoder import Decoder, Selection
from wstrace_msgpack.read.part import Part
from wstrace_msgpack.read.trace import TraceFile
from wstrace_msgpack.write.parts import Parts
from wstrace_msgpack.write.writer import TraceWriter

_TIMES = ("t", "monotonic", "boottime")
#: marks that the new file gets of its own
_OWN_MARKS = frozenset(("facts", "ledger", "schema", "user"))


def copy(traces: Sequence[TraceFile], output: str, *, force: bool = False) -> int:
    """Writes all that can be read of the traces to one new file, in the order of time; gives its rows.

    Raises:
        OutputError: it cannot be written.
    """
    first = traces[0]
    strings = Dictionary()
    parts = Parts(output, force=force)
    parts.create()
    writer = TraceWriter(parts, strings)
    writer.begin(first.header)
    hosts = _hosts(traces)
    base = 0
    streams = []
    for number, trace in enumerate(traces):
        moved = Moved(trace, strings, base, _shift(first, trace), number if len(hosts) > 1 else None)
        base += int(trace.mappings["id"].max(initial=0))
        writer.write(moved.batch(trace.mappings))
        for mark in trace.marks:
            kind = mark.get("m")
            if kind not in _OWN_MARKS and (kind != "clock" or trace is first):
                writer.copy_mark(moved.mark(mark))
        streams += [moved.batches(part, decoder) for part, decoder in trace.decoders(Selection())]
    if len(hosts) > 1:
        writer.copy_mark({"m": "hosts", "t": 0, "hosts": hosts})
    for batch in heapq.merge(*streams, key=lambda batch: batch.window[0]):
        writer.write(batch)
    writer.close(_ledger(traces), next((trace.facts for trace in traces if trace.facts), {}))
    return sum(writer.rows.values())


class Moved:
    """One trace's batches as they stand in the new file: its names, ids of mappings, times and host.

    Args:
        strings: the new file's names.
        base: added to ids of mappings.
        shift: ns added to times.
        host: which one of several it is; None = there is but one.
    """

    def __init__(self, trace: TraceFile, strings: Dictionary, base: int, shift: int, host: int | None) -> None:
        self._trace = trace
        self._suffix = "" if host is None else f"@{trace.header.host.get('name') or host}"
        self._codes = {"": np.empty(0, "<u4"), self._suffix: np.empty(0, "<u4")}
        self._strings, self._base, self._shift, self._host = strings, base, shift, host

    def batches(self, part: Part, decoder: Decoder) -> Iterator[Batch]:
        """The rows of a part."""
        for frame in part.read(decoder.kinds):
            batch = decoder.batch(frame)
            if batch is not None and (len(batch) or batch.lost):
                yield self.batch(batch)

    def _names(self, codes: NDArray[Any], suffix: str) -> NDArray[Any]:
        """The new file's codes of names; the old dictionary may have grown meanwhile."""
        known = self._codes[suffix]
        if len(known) < len(self._trace.strings):
            names = self._trace.strings.names(len(known), len(self._trace.strings))
            more = [self._strings.code(name + suffix) if name else 0 for name in names]
            known = self._codes[suffix] = np.concatenate((known, np.array(more, "<u4")))
        found: NDArray[Any] = known[codes]
        return found

    def batch(self, batch: Batch) -> Batch:
        """A batch, moved."""
        columns = {}
        for name, array in batch.columns.items():
            column = batch.schema.column(name)
            if column is None:
                columns[name] = array
            elif column.derived:
                continue
            elif column.semantic == "str":
                columns[name] = self._names(array, self._suffix if batch.schema.name == "process" else "")
            elif column.semantic == "map" or (name == "id" and batch.schema.name == "mapping"):
                columns[name] = np.where(array == 0, array, array + np.uint32(self._base)).astype("<u4")
            elif column.semantic == "ns" and self._shift:
                columns[name] = (array.astype("<i8") + self._shift).astype("<u8")
            else:
                columns[name] = array
        if self._host is not None and batch.schema.name not in ("mapping", "mark"):
            columns.setdefault("host", np.full(len(batch), self._host, "<u2"))
        window = (max(0, batch.window[0] + self._shift), max(0, batch.window[1] + self._shift))
        header = self.mark(batch.header)
        return Batch(batch.schema, columns, window=window, lost=batch.lost, strings=self._strings, header=header)

    def mark(self, mark: Mapping[str, Any]) -> dict[str, Any]:
        """A mark or header with its times moved."""
        moved = dict(mark)
        for key in _TIMES:
            if type(moved.get(key)) is int:
                moved[key] = max(0, moved[key] + self._shift)
        return moved


def _shift(first: TraceFile, other: TraceFile) -> int:
    """ns from the other's clock to the first one's: 0 on one boot of a machine, else by their realtime."""
    a, b = first.header, other.header
    if a.boot_id == b.boot_id and (a.boot_id or a.host == b.host):
        return 0
    offsets = [header.clock.get("realtime_offset_ns", 0) for header in (a, b)]
    if not all(type(offset) is int for offset in offsets):
        return 0
    return int(offsets[1] - offsets[0])


def _hosts(traces: Sequence[TraceFile]) -> list[str]:
    """The names of the traces' hosts, when there are several."""
    names = [str(trace.header.host.get("name", "")) for trace in traces]
    return names if len(set(names)) > 1 else []


def _ledger(traces: Sequence[TraceFile]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for trace in traces:
        total.update(trace.ledger.as_dict())
        for name, n in trace.damage().items():
            if n and name in ("lost_frames", "bad_frames"):
                total[f"file_{name}"] += n
    return Ledger.from_dict(dict(total)).as_dict()
