"""Log events: page faults as chosen by sampling.py, starts and exits of processes, loss. No body; attributes say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch
from wstrace.clock import ClockAnchor
from wstrace.schema import (
    FAULT_ACCESS_KNOWN,
    FAULT_EXECUTE,
    FAULT_MAJOR,
    FAULT_WRITE,
    ID_SPACES,
    STACK_COLUMNS,
    Column,
)
from wstrace.text import base_name
from wstrace_exporters.otel import names
from wstrace_exporters.otel.correlation import SpanInterval, span_intervals
from wstrace_exporters.otel.export.processes import Process, file_name, kind_name
from wstrace_exporters.otel.export.resource import clean
from wstrace_exporters.otel.propagation import TraceParent, context_of

if TYPE_CHECKING:
    from opentelemetry._logs import Logger


#: Columns that are attributes of an event under other names, or that its record contains.
_NAMED = frozenset(("time_ns", "pid", "tid", "pc", "va", "flags", "file", "pc_file", "kind", *STACK_COLUMNS))


def access(flags: int) -> str:
    """`read`, `write` or `execute`; "" when the system does not say."""
    if not flags & FAULT_ACCESS_KNOWN:
        return ""
    return "write" if flags & FAULT_WRITE else "execute" if flags & FAULT_EXECUTE else "read"


def other_columns(batch: Batch) -> list[Column]:
    """The columns of page faults that have no attribute above: numbers and names; ids mean nothing elsewhere."""
    columns = (column for column in batch.schema.columns if column.name in batch and column.name not in _NAMED)
    return [column for column in columns if column.semantic == "str" or column.semantic not in ID_SPACES]


def fault_attributes(batch: Batch, row: int, weight: int) -> dict[str, Any]:
    """The attributes of a page fault's event; a column that the batch lacks gives none. Addresses are hex: u64."""
    flags = int(batch["flags"][row])
    found: dict[str, Any] = {
        names.FAULT_TYPE: names.MAJOR if flags & FAULT_MAJOR else names.MINOR,
        names.ADDRESS: f"{int(batch['va'][row]):#018x}",
        names.INSTRUCTION: f"{int(batch['pc'][row]):#018x}",
        names.WEIGHT: weight,
    }
    if "tid" in batch:
        found[names.THREAD] = int(batch["tid"][row])
    if "file" in batch:
        found[names.FILE_PATH] = file_name(batch.strings, int(batch["file"][row]))
    if "pc_file" in batch:
        found[names.INSTRUCTION_FILE] = file_name(batch.strings, int(batch["pc_file"][row]))
    if "kind" in batch:
        found[names.KIND] = kind_name(int(batch["kind"][row]))
    if known := access(flags):
        found[names.ACCESS] = known
    for column in other_columns(batch):
        number = int(batch[column.name][row])
        if column.semantic != "str":
            # OTLP's integers have 63 bits and a sign
            found[names.FAULT_COLUMN + column.name] = f"{number:#018x}" if column.type == "u64" else number
        elif number:
            found[names.FAULT_COLUMN + column.name] = file_name(batch.strings, number)
    return found


class Events:
    """Emits events to the loggers of their processes.

    Args:
        logger: gives the logger of a process.
        clock: wall time of a record.
    """

    def __init__(self, logger: Callable[[Process], Logger], clock: ClockAnchor) -> None:
        self._logger, self._clock = logger, clock
        self.emitted = 0

    def faults(self, batch: Batch, weights: NDArray[np.int64], process_of: Callable[[int], Process]) -> None:
        """An event for each row."""
        pids = batch["pid"].tolist()
        times = batch["time_ns"] if "time_ns" in batch else np.full(len(batch), batch.window[1], np.uint64)
        spans: list[SpanInterval | None] = [None] * len(batch)
        if span_intervals.pid in pids and "tid" in batch:
            spans = [span_intervals.find(t, n) if p == span_intervals.pid else None
                     for p, t, n in zip(pids, batch["tid"].tolist(), times.tolist(), strict=True)]  # fmt: skip
        for row, pid in enumerate(pids):
            major = bool(batch["flags"][row] & FAULT_MAJOR)
            self._emit(
                process_of(pid), names.EVENT_FAULT, "INFO" if major else "DEBUG", int(times[row]),
                fault_attributes(batch, row, int(weights[row])), spans[row],
            )  # fmt: skip

    def started(self, process: Process) -> None:
        """A process was seen first."""
        self._emit(process, names.EVENT_START, "INFO", process.started_ns, {
            names.PROCESS_PID: process.pid, names.PROCESS_PARENT_PID: process.parent,
            names.PROCESS_NAME: clean(base_name(process.name)),
        })  # fmt: skip

    def exited(self, process: Process) -> None:
        """A process ended."""
        name = clean(base_name(process.name))
        attributes: dict[str, Any] = {names.PROCESS_PID: process.pid, names.PROCESS_NAME: name}
        if process.code is not None:
            attributes[names.PROCESS_EXIT_CODE] = process.code
        attributes[f"{names.PAGE_FAULTS}.{names.MINOR}"] = process.recorded(0)
        attributes[f"{names.PAGE_FAULTS}.{names.MAJOR}"] = process.recorded(1)
        self._emit(process, names.EVENT_EXIT, "INFO", process.ended_ns, attributes)

    def lost(self, process: Process, stage: str, who: str, count: int, time_ns: int) -> None:
        """Records were lost at a stage of the ledger."""
        self._emit(process, names.EVENT_LOSS, "WARN", time_ns, {
            names.STAGE: stage, names.WHO: who, names.WEIGHT: count,
        })  # fmt: skip

    def _emit(
        self, process: Process, event: str, severity: str, time_ns: int, attributes: dict[str, Any],
        span: SpanInterval | None = None,
    ) -> None:  # fmt: skip
        from opentelemetry._logs import LogRecord, SeverityNumber

        place = TraceParent(span.trace_id, span.span_id) if span is not None else None
        record = LogRecord(
            timestamp=self._clock.wall(time_ns),
            context=context_of(place),
            severity_number=SeverityNumber[severity],
            severity_text=severity,
            attributes=attributes,
            event_name=event,
        )
        self._logger(process).emit(record)
        self.emitted += 1
