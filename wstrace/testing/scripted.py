"""Scripted sources, targets, traces and exporters: what a test of a plugin puts around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.interfaces import Context, Exporter, Source, Target, Usage
from wstrace.schema import DTYPES, STREAMS, Schema

if TYPE_CHECKING:
    from wstrace.trace import Trace


def batch_of(schema: Schema, strings: Dictionary | None = None, **columns: Any) -> Batch:
    """Creates a batch from lists or scalars; `str` columns take names, and scalars are repeated for every row.

    >>> len(batch_of(STREAMS["page_fault"], va=[4096, 8192], pid=1))
    2
    """
    strings = strings if strings is not None else Dictionary()
    n = max((len(v) for v in columns.values() if isinstance(v, Sequence) and not isinstance(v, str)), default=1)
    arrays = {}
    for name, value in columns.items():
        column = schema.column(name)
        values = [value] * n if isinstance(value, str | int) else list(value)
        if column is not None and column.semantic == "str":
            values = [strings.code(v) if isinstance(v, str) else v for v in values]
        arrays[name] = np.array(values, DTYPES[column.type] if column is not None else None)
    times = arrays.get("time_ns")
    window = (int(times.min()), int(times.max())) if times is not None and n else (0, 0)
    return Batch(schema, arrays, window=window, strings=strings)


def trace_of(*batches: Batch) -> Trace:
    """A trace of these batches in memory, as that of a session which has stopped."""
    from wstrace.session_trace import Recorder, SessionTrace

    context, recorder = Context(), Recorder()
    recorder.start(context)
    for batch in batches:
        recorder.export(batch.recode(context.strings))
    return SessionTrace(context, recorder, lambda: "stopped")


class ScriptedSource(Source):
    """Returns its given batches, one per drain, and then is finished. It adds their names to the session's."""

    name = "scripted"
    streams = tuple(STREAMS.values())

    def __init__(self, batches: Iterable[Batch] = ()) -> None:
        self._batches = list(batches)
        self.started = self.stopped = False

    def start(self, context: Context) -> None:
        """Translates the names to the session's dictionary."""
        self.started = True
        self._batches = [batch.recode(context.strings) for batch in self._batches]

    def drain(self, timeout: float) -> Iterable[Batch]:
        """The next batch."""
        return [self._batches.pop(0)] if self._batches else []

    def stop(self) -> Iterable[Batch]:
        """The remaining batches."""
        self.stopped = True
        rest, self._batches = self._batches, []
        return rest

    @property
    def finished(self) -> bool:
        """Whether no batch is left."""
        return not self._batches


class ScriptedTarget(Target):
    """A target that keeps running. There is no process behind it, so nothing may query the system about it."""

    def __init__(self, pid: int = 7, name: str = "scripted", *, launched: bool = True) -> None:
        self.pid, self.name, self.launched = pid, name, launched

    def resume(self) -> None:
        """Does nothing, as no process waits."""

    def wait(self, timeout: float) -> int | None:
        """None, as it never ends."""
        return None

    def usage(self) -> Usage:
        """An empty Usage, as there is no process."""
        return Usage()

    def signal(self, number: int) -> None:
        """Does nothing, as there is no process to signal."""

    def close(self) -> None:
        """Does nothing, as there is no handle to close."""


class RecordingExporter(Exporter):
    """Keeps what it receives: the batches in `batches`, and the names of the calls in `calls`."""

    name = "recording"

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.calls: list[str] = []
        self.context = Context()

    def start(self, context: Context) -> None:
        """Records the call."""
        self.context = context
        self.calls.append("start")

    def export(self, batch: Batch) -> None:
        """Keeps the batch."""
        self.batches.append(batch)

    def flush(self, timeout: float) -> None:
        """Records the call."""
        self.calls.append("flush")

    def close(self) -> None:
        """Records the call."""
        self.calls.append("close")

    def of(self, stream: str) -> list[Batch]:
        """The batches of one stream."""
        return [batch for batch in self.batches if batch.schema.name == stream]
