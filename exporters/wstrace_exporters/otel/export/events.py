"""Log events: page faults as chosen by sampling.py, starts and exits of processes, loss. No body; attributes say it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from opentelemetry._logs import LogRecord, SeverityNumber

from wstrace.batch import Batch
from wstrace.clock import ClockAnchor
from wstrace.schema import (
    FAULT_ACCESS_KNOWN,
    FAULT_EXECUTE,
    FAULT_MAJOR,
    FAULT_WRITE,
    ID_SPACES,
    STACK_COLUMNS,
)
from wstrace.text import base_name
from wstrace_exporters.otel import names
from wstrace_exporters.otel.export.processes import TYPES, Process, Processes, clean, file_name, kind_name
from wstrace_exporters.otel.propagation import TraceParent, context_of
from wstrace_exporters.otel.spans import SpanInterval, span_intervals

#: Columns that are attributes of an event under other names, or that its record contains.
_NAMED = frozenset(("time_ns", "pid", "tid", "pc", "va", "flags", "file", "pc_file", "kind", *STACK_COLUMNS))


def _fault_attributes(batch: Batch, row: int, weight: int) -> dict[str, Any]:
    """The attributes of a page fault's event; a column that the batch lacks gives none. Addresses are hex: u64.

    Further columns are numbers and names; ids mean nothing elsewhere.
    """
    flags = int(batch["flags"][row])
    found: dict[str, Any] = {
        **dict([TYPES[bool(flags & FAULT_MAJOR)]]),
        names.ADDRESS: f"{int(batch['va'][row]):#018x}",
        names.INSTRUCTION: f"{int(batch['pc'][row]):#018x}",
        names.WEIGHT: weight,
    }
    if "tid" in batch:
        found[names.THREAD] = int(batch["tid"][row])
    for column, name in (("file", names.FILE_PATH), ("pc_file", names.INSTRUCTION_FILE)):
        if column in batch:
            found[name] = file_name(batch.strings, int(batch[column][row]))
    if "kind" in batch:
        found[names.KIND] = kind_name(int(batch["kind"][row]))
    if flags & FAULT_ACCESS_KNOWN:
        found[names.ACCESS] = "write" if flags & FAULT_WRITE else "execute" if flags & FAULT_EXECUTE else "read"
    for one in batch.schema.columns:
        if one.name in _NAMED or one.name not in batch:
            continue
        number = int(batch[one.name][row])
        if one.semantic == "str":
            if number:
                found[names.FAULT_COLUMN + one.name] = file_name(batch.strings, number)
        elif one.semantic not in ID_SPACES:  # OTLP's integers have 63 bits and a sign
            found[names.FAULT_COLUMN + one.name] = f"{number:#018x}" if one.type == "u64" else number
    return found


class Events:
    """Emits events to the loggers of their processes.

    Args:
        processes: their table.
        clock: wall time of a record.
    """

    def __init__(self, processes: Processes, clock: ClockAnchor) -> None:
        self._processes, self._clock = processes, clock

    def faults(self, batch: Batch, weights: NDArray[np.int64]) -> None:
        """An event for each row."""
        absent = np.zeros(len(batch), np.uint8)
        tids = batch.columns.get("tid", absent).tolist()
        times = (batch["time_ns"] if "time_ns" in batch else absent + np.uint64(batch.window[1])).tolist()
        for row, (pid, tid, time_ns) in enumerate(zip(batch["pid"].tolist(), tids, times, strict=True)):
            span = span_intervals.find(tid, time_ns) if pid == span_intervals.pid else None
            severity = SeverityNumber.INFO if batch["flags"][row] & FAULT_MAJOR else SeverityNumber.DEBUG
            attributes = _fault_attributes(batch, row, int(weights[row]))
            self._emit(self._processes.get(pid), names.EVENT_FAULT, time_ns, attributes, severity, span)

    def started(self, process: Process) -> None:
        """A process was seen first."""
        attributes = {names.PROCESS_PID: process.pid, names.PROCESS_PARENT_PID: process.parent,
                      names.PROCESS_NAME: clean(base_name(process.name))}  # fmt: skip
        self._emit(process, names.EVENT_START, process.started_ns, attributes)

    def exited(self, process: Process) -> None:
        """A process ended."""
        attributes = {names.PROCESS_PID: process.pid, names.PROCESS_NAME: clean(base_name(process.name))}
        if process.code is not None:
            attributes[names.PROCESS_EXIT_CODE] = process.code
        for major, kind in enumerate((names.MINOR, names.MAJOR)):
            attributes[f"{names.PAGE_FAULTS}.{kind}"] = process.recorded(major)
        self._emit(process, names.EVENT_EXIT, process.ended_ns, attributes)

    def lost(self, process: Process, stage: str, who: str, count: int, time_ns: int) -> None:
        """Records were lost at a stage of the ledger."""
        attributes = {names.STAGE: stage, names.WHO: who, names.WEIGHT: count}
        self._emit(process, names.EVENT_LOSS, time_ns, attributes, SeverityNumber.WARN)

    def _emit(self, process: Process, event: str, time_ns: int, attributes: dict[str, Any],
              severity: SeverityNumber = SeverityNumber.INFO, span: SpanInterval | None = None) -> None:  # fmt: skip
        place = TraceParent(span.trace_id, span.span_id) if span is not None else None
        process.logger.emit(
            LogRecord(
                timestamp=self._clock.wall(time_ns),
                context=context_of(place),
                severity_number=severity,
                severity_text=severity.name,
                attributes=attributes,
                event_name=event,
            )
        )
