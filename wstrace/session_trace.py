"""SessionTrace: the records that a session keeps in memory, as a Trace, during the session and after it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from wstrace.batch import Batch, Dictionary
from wstrace.clock import now_ns
from wstrace.interfaces import Context
from wstrace.ledger import Ledger
from wstrace.schema import DTYPES, MARK, STREAMS, Schema
from wstrace.table import Selection
from wstrace.trace import Trace
from wstrace.trace_info import TraceInfo

if TYPE_CHECKING:
    from wstrace.recorder import Recorder


class SessionTrace(Trace):
    """The records that a session has kept in memory so far.

    Args:
        context: the session's names, ledger and description.
        recorder: the one of its exporters that keeps the records.
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


def shown(kind: str, context: Context, state: str) -> str:
    """A session in one line: what is traced, its state, and what was recorded and lost so far."""
    rows = ", ".join(f"{n:,} {stream} recorded" for stage, stream, n in context.ledger.rows() if stage == "recorded")
    lost = sum(n for _, _, n in context.ledger.losses())
    return f"<{kind} of {context.info.name}: {state}; {rows or 'no record'}; {lost:,} lost>"


def user_mark(text: str, strings: Dictionary) -> Batch:
    """A batch of one user mark with this text, at the current time and thread."""
    import numpy as np

    values = {"time_ns": now_ns(), "pid": os.getpid(), "tid": threading.get_native_id(), "text": strings.code(text)}
    columns = {c.name: np.array([values[c.name]], DTYPES[c.type]) for c in MARK.columns}
    return Batch(MARK, columns, strings=strings, source="user")
