"""Recorder keeps the records of a session in memory; SessionTrace is the Trace of them, during the session too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from wstrace.batch import Batch
from wstrace.interfaces import Context, Exporter
from wstrace.ledger import Ledger
from wstrace.schema import PAGE_FAULT, STREAMS, Schema
from wstrace.table import Selection
from wstrace.trace import Trace
from wstrace.trace_info import TraceInfo

#: The bytes of faults that are kept. The rest is counted as dropped in the ledger.
KEEP_BYTES = 256 << 20
#: The rows of other streams may take one part in this many of KEEP_BYTES, in addition.
_OTHERS = 4


class Recorder(Exporter):
    """The exporter that keeps the page faults and the rows of other streams in memory, each up to a limit."""

    name = "memory"

    def __init__(self, *, keep_bytes: int = KEEP_BYTES) -> None:
        # of other streams, of faults
        self._kept: list[list[Batch]] = [[], []]
        self._bytes, self._room = [0, 0], (keep_bytes // _OTHERS, keep_bytes)
        self._ledger = Ledger()

    def start(self, context: Context) -> None:
        """Takes the session's ledger, to count what is not kept."""
        self._ledger = context.ledger

    def export(self, batch: Batch) -> None:
        """Keeps the batch; one past the limit is counted as dropped in the ledger."""
        kind = int(batch.schema.name == PAGE_FAULT.name)
        if self._bytes[kind] + batch.nbytes > self._room[kind]:
            self._ledger.add("dropped_exporter", len(batch), self.name)
            return
        self._bytes[kind] += batch.nbytes
        self._kept[kind].append(batch)

    def thin(self, chosen: Callable[[Batch], Batch | None]) -> None:
        """Keeps of each batch what `chosen` returns of it: for a live view, which needs no rows of long ago.

        The ledger does not count what is left out: it was let go, not lost. Faults come first.
        chosen: returns the batch, some rows of it, or None. Batches of a stream come to it as one.
        """
        for kind in (1, 0):
            self._kept[kind] = [part for batch in _joined(self._kept[kind]) if (part := chosen(batch)) is not None]
            self._bytes[kind] = sum(batch.nbytes for batch in self._kept[kind])

    def batches(self) -> list[Batch]:
        """All batches that were kept: first mappings, processes and the other streams, then the faults."""
        return [*self._kept[0], *self._kept[1]]


class SessionTrace(Trace):
    """The records that a session has kept in memory so far.

    context: the session's names, ledger and description. recorder: the one of its exporters that keeps the records.
    state: returns the session's current state.
    """

    def __init__(self, context: Context, recorder: Recorder, state: Callable[[], str]) -> None:
        self._context, self._recorder, self._state = context, recorder, state
        self.strings = context.strings

    @property
    def name(self) -> str:
        """The command line and the process ids that are traced."""
        return self.info.name

    @property
    def state(self) -> str:
        """`new`, `running`, `stopping`, `stopped`, `failed` or `abandoned`."""
        return self._state()

    @property
    def info(self) -> TraceInfo:
        """The description of the trace: command, targets, levels, times and resource usage."""
        return self._context.info

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows kept so far, by stream."""
        found: dict[str, int] = {}
        for batch in self._recorder.batches():
            if len(batch):
                found[batch.schema.name] = found.get(batch.schema.name, 0) + len(batch)
        return found

    @property
    def ledger(self) -> Ledger:
        """The session's ledger."""
        return self._context.ledger

    @property
    def begin_ns(self) -> int:
        """When the session began, in nanoseconds of the records' clock."""
        return self.info.started_ns

    def schema(self, name: str) -> Schema:
        """The schema of a stream as its source declares it; without columns when the stream is unknown."""
        kept = (batch.schema for batch in self._recorder.batches() if batch.schema.name == name)
        return next(kept, None) or STREAMS.get(name) or Schema(name, ())

    def read(self, selection: Selection) -> Iterator[Batch]:
        """Yields the batches kept so far, mappings and processes before the faults."""
        for batch in self._recorder.batches():
            wanted = selection.of(batch)
            if wanted is not None:
                yield wanted


def _joined(batches: list[Batch]) -> list[Batch]:
    """The batches of each stream as one, unless they are parts of snapshots or have their times by a window."""
    alike: dict[object, list[Batch]] = {}
    for batch in batches:
        alone = batch.snapshot is not None or "time_ns" not in batch
        key = id(batch) if alone else (batch.schema, tuple(batch), id(batch.strings))
        alike.setdefault(key, []).append(batch)
    return [
        one if len(group) == 1 else Batch(
            one.schema, {name: np.concatenate([batch[name] for batch in group]) for name in one},
            lost=sum(batch.lost for batch in group), source=one.source, strings=one.strings,
        )
        for group in alike.values() for one in group[:1]
    ]  # fmt: skip
