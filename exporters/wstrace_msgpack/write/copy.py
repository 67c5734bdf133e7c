"""Traces into one new trace: what `recover` and `merge` do, streamed. The new file keeps their time and host."""

from __future__ import annotations

import functools
import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch, Dictionary, Recoding, Translation, recoded
from wstrace.ledger import Ledger
from wstrace.schema import ID_SPACES, MAPPING, MARK, PROCESS
from wstrace.table import Selection
from wstrace_msgpack.read.decoder import Decoder
from wstrace_msgpack.read.part import Part
from wstrace_msgpack.read.trace import TraceFile
from wstrace_msgpack.write.live_mappings import shifted
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
    bases = dict.fromkeys((space for space, table in ID_SPACES.items() if table), 0)
    streams = []
    for number, trace in enumerate(traces):
        moved = Moved(trace, strings, dict(bases), _shift(first, trace), number if len(hosts) > 1 else None)
        for space in bases:
            bases[space] += _highest(trace, space)
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
    """One trace's batches as they stand in the new file: its ids, times and host.

    Args:
        strings: the new file's names.
        bases: semantic -> what is added to the ids of that space.
        shift: ns added to times.
        host: which one of several it is; None = there is but one.
    """

    def __init__(
        self, trace: TraceFile, strings: Dictionary, bases: Mapping[str, int], shift: int, host: int | None
    ) -> None:
        self._strings, self._shift, self._host = strings, shift, host
        suffix = "" if host is None else f"@{trace.header.host.get('name') or host}"
        self._spaces: dict[str, Recoding] = {
            "str": Translation(trace.strings, strings),
            **{space: functools.partial(shifted, base=base) for space, base in bases.items()},
        }
        if shift:
            self._spaces["ns"] = self._later
        #: processes of several hosts are told apart by their names
        self._of_processes: dict[str, Recoding] = {**self._spaces, "str": Translation(trace.strings, strings, suffix)}

    def batches(self, part: Part, decoder: Decoder) -> Iterator[Batch]:
        """The rows of a part."""
        for frame in part.read(decoder.kinds):
            batch = decoder.batch(frame)
            if batch is not None and (len(batch) or batch.lost):
                yield self.batch(batch)

    def _later(self, times: NDArray[Any]) -> NDArray[Any]:
        return (times.astype("<i8") + self._shift).astype("<u8")

    def batch(self, batch: Batch) -> Batch:
        """A batch, moved."""
        schema = batch.schema
        stored = {c: batch[c] for c in batch if (column := schema.column(c)) is None or not column.derived}
        columns = recoded(schema, stored, self._of_processes if schema.name == PROCESS.name else self._spaces)
        if self._host is not None and schema.name not in (MAPPING.name, MARK.name):
            columns.setdefault("host", np.full(len(batch), self._host, "<u2"))
        window = (max(0, batch.window[0] + self._shift), max(0, batch.window[1] + self._shift))
        header = self.mark(batch.header)
        return Batch(schema, columns, window=window, lost=batch.lost, strings=self._strings, header=header)

    def mark(self, mark: Mapping[str, Any]) -> dict[str, Any]:
        """A mark or header with its times moved."""
        moved = dict(mark)
        for key in _TIMES:
            if type(moved.get(key)) is int:
                moved[key] = max(0, moved[key] + self._shift)
        return moved


def _highest(trace: TraceFile, space: str) -> int:
    """The highest id of a space that a trace's table gives."""
    table = ID_SPACES[space]
    key = next(column.name for column in trace.schema(table).columns if column.semantic == space)
    return max((int(batch[key].max(initial=0)) for batch in trace.batches(table, [key])), default=0)


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
