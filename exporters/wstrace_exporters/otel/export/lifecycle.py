"""The life of traced processes as events and spans: resource, logger and start event; exit event and span at the end.

Page faults become events as chosen by sampling.py, and losses do. An event has no body; attributes say it.
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opentelemetry._logs import LogRecord, SeverityNumber, get_logger_provider
from opentelemetry.trace import SpanKind, Status, StatusCode, get_tracer_provider

from wstrace import schema
from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.interfaces import Context
from wstrace.text import base_name
from wstrace_exporters.otel import names
from wstrace_exporters.otel.export import resource
from wstrace_exporters.otel.export.processes import TYPES, Process, Processes, clean, file_name, kind_name
from wstrace_exporters.otel.propagation import TraceParent, context_of, new_id, parent, take_reserved
from wstrace_exporters.otel.spans import SpanInterval, span_intervals
from wstrace_exporters.otel.transport.providers import OwnProviders, scope

#: seconds after which all faults of an ended process have arrived
SETTLE_SECONDS = 1.0
#: the exit code in a process event that has none
UNKNOWN_CODE = -1
_COLUMNS = ("pid", "tid", "event", "time_ns", "ppid", "name", "code")

#: Columns that are attributes of an event under other names, or that its record contains.
_NAMED = frozenset(("time_ns", "pid", "tid", "pc", "va", "flags", "file", "pc_file", "kind", *schema.STACK_COLUMNS))


def _fault_attributes(batch: Batch, row: int, weight: int) -> dict[str, Any]:
    """The attributes of a page fault's event; a column that the batch lacks gives none. Addresses are hex: u64.

    Further columns are numbers and names; ids mean nothing elsewhere.
    """
    flags = int(batch["flags"][row])
    found: dict[str, Any] = {
        **dict([TYPES[bool(flags & schema.FAULT_MAJOR)]]),
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
    if flags & schema.FAULT_ACCESS_KNOWN:
        found[names.ACCESS] = (
            "write" if flags & schema.FAULT_WRITE else "execute" if flags & schema.FAULT_EXECUTE else "read"
        )
    for one in batch.schema.columns:
        if one.name in _NAMED or one.name not in batch:
            continue
        number = int(batch[one.name][row])
        if one.semantic == "str":
            if number:
                found[names.FAULT_COLUMN + one.name] = file_name(batch.strings, number)
        elif one.semantic not in schema.ID_SPACES:  # OTLP's integers have 63 bits and a sign
            found[names.FAULT_COLUMN + one.name] = f"{number:#018x}" if one.type == "u64" else number
    return found


class Lifecycle:
    """Follows the processes of a trace.

    context: the session's. processes: their table. own: makes loggers and tracers; None = the application's are used.
    events, spans: whether to send them. arguments: whether resources contain the command's arguments.
    """

    def __init__(self, context: Context, processes: Processes, own: OwnProviders | None, *, events: bool, spans: bool,
                 arguments: bool) -> None:  # fmt: skip
        self._context, self._processes, self._own = context, processes, own
        self._with_events, self._with_spans, self._arguments = events, spans, arguments
        self._clock = context.info.clock
        #: pid -> the place of its span in its trace, and of the span above; until it has ended
        self._places: dict[int, tuple[TraceParent, TraceParent | None]] = {}
        self._ending: list[tuple[float, Process]] = []
        self.latest_ns = 0  # of the records so far
        targets = {target.pid: target.name for target in context.targets}
        for pid in processes.roots:
            process = processes.get(pid)
            process.name = targets.get(pid) or base_name(context.info.command[0] if context.info.command else "")
            process.started_ns = context.info.started_ns or self.now_ns()
            self._begin(process)

    def now_ns(self) -> int:
        """The current time on the records' clock; for a recorded trace its end, or the newest time that was read."""
        info = self._context.info
        return max(info.ended_ns, self.latest_ns) if info.recorded else now_ns()

    def take(self, batch: Batch) -> None:
        """Reads process events row by row, because they are few."""
        absent = [0] * len(batch)
        columns = [batch[name].tolist() if name in batch else absent for name in _COLUMNS]
        for pid, tid, event, now, above, name, code in zip(*columns, strict=True):
            process = self._processes.get(pid)
            if not process.pid or tid not in (0, pid):  # other rows are about a thread
                continue
            if event in (schema.PROCESS_SEEN, schema.PROCESS_FORK):
                process.parent, process.started_ns, process.ended_ns = above, process.started_ns or now, 0
            if name and event in (schema.PROCESS_SEEN, schema.PROCESS_FORK, schema.PROCESS_EXEC, schema.PROCESS_NAME):
                process.name = batch.strings[name]
            self._begin(process)
            if event == schema.PROCESS_EXIT:
                process.ended_ns, process.code = now, None if code == UNKNOWN_CODE else code
                # a root process ends with the trace, when its exit code is known; others after the faults of this
                # drain, which arrive later
                if pid not in self._processes.roots:
                    self._ending.append((time.monotonic(), process))

    def _begin(self, process: Process) -> None:
        """A process was seen first: fixes the ids of its span, and of the span above it.

        They are those that a launched target got, below TRACEPARENT; otherwise it is below its parent process.
        """
        if not process.pid or process.pid in self._places:  # 0: many processes, of which none began here
            return
        process.resource = None
        reserved = take_reserved() if process.pid in self._processes.roots else None
        if reserved is None:
            above, _ = self._places.get(process.parent, (parent(), None))
            reserved = (
                TraceParent(above.trace_id if above else new_id(16), new_id(8), above.flags if above else 1),
                above,
            )
        self._places[process.pid] = reserved

    def admit(self) -> None:
        """Sends start events, and makes resources, of processes seen since: by now their exec has named them."""
        info = self._context.info
        for process in self._processes:
            if process.resource is not None:
                continue
            root = process.pid in self._processes.roots or not info.command
            started = self._clock.wall(process.started_ns) if process.started_ns else 0
            made = resource.of_process(process, started, info.command, arguments=self._arguments and root)
            process.logger = self._own.logger(made) if self._own else scope(get_logger_provider(), "logger")
            process.resource = made
            if self._with_events and process.pid in self._places:
                self._started(process)

    def settle(self) -> None:
        """Does the same as admit(), and ends the processes of which the last faults have arrived."""
        self.admit()
        while self._ending and time.monotonic() - self._ending[0][0] > SETTLE_SECONDS:
            self._end(self._ending.pop(0)[1], 0)

    def end_all(self) -> None:
        """At the end of the trace: makes the span of every remaining process, and exit events of those that ended."""
        now, code = self.now_ns(), self._context.info.exit_code
        self.admit()
        for process in self._processes:
            if process.pid in self._processes.roots and code is not None:
                process.code, process.ended_ns = code, process.ended_ns or now
            self._end(process, now)

    def _end(self, process: Process, now: int) -> None:
        """Sends the exit event, and the span of a process that has ended, or that continues when the trace ends."""
        place, above = self._places.pop(process.pid, (None, None))
        if place is None:
            return
        if process.ended_ns and self._with_events:
            self._exited(process)
        if not self._with_spans or process.pid == os.getpid():
            return
        own = self._own
        tracer = own.tracer(process.resource, place) if own is not None else scope(get_tracer_provider(), "tracer")
        attributes: dict[str, Any] = {
            names.PROCESS_PID: process.pid,
            names.PROCESS_PARENT_PID: process.parent,
            names.SPAN_MINOR: process.recorded(0),
            names.SPAN_MAJOR: process.recorded(1),
        }
        name = clean(base_name(process.name)) or str(process.pid)
        began = self._clock.wall(process.started_ns)
        made = tracer.start_span(name, context_of(above), SpanKind.INTERNAL, attributes, start_time=began)
        if process.code is not None:
            made.set_attribute(names.PROCESS_EXIT_CODE, process.code)
            if process.code:
                made.set_attribute(names.ERROR_TYPE, str(process.code))
                made.set_status(Status(StatusCode.ERROR, f"exit code {process.code}"))
        sampled = made.get_span_context().trace_flags.sampled
        with own.counted("traces") if own is not None and sampled else nullcontext():
            made.end(self._clock.wall(process.ended_ns or now))

    def faults(self, batch: Batch, weights: NDArray[np.int64]) -> None:
        """An event for each row."""
        absent = np.zeros(len(batch), np.uint8)
        tids = batch.columns.get("tid", absent).tolist()
        times = (batch["time_ns"] if "time_ns" in batch else absent + np.uint64(batch.window[1])).tolist()
        for row, (pid, tid, time_ns) in enumerate(zip(batch["pid"].tolist(), tids, times, strict=True)):
            span = span_intervals.find(tid, time_ns) if pid == span_intervals.pid else None
            severity = SeverityNumber.INFO if batch["flags"][row] & schema.FAULT_MAJOR else SeverityNumber.DEBUG
            attributes = _fault_attributes(batch, row, int(weights[row]))
            self._emit(self._processes.get(pid), names.EVENT_FAULT, time_ns, attributes, severity, span)

    def _started(self, process: Process) -> None:
        """A process was seen first."""
        attributes = {names.PROCESS_PID: process.pid, names.PROCESS_PARENT_PID: process.parent,
                      names.PROCESS_NAME: clean(base_name(process.name))}  # fmt: skip
        self._emit(process, names.EVENT_START, process.started_ns, attributes)

    def _exited(self, process: Process) -> None:
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
        record = LogRecord(
            timestamp=self._clock.wall(time_ns),
            context=context_of(place),
            severity_number=severity,
            severity_text=severity.name,
            attributes=attributes,
            event_name=event,
        )
        with self._own.counted("logs") if self._own is not None else nullcontext():
            process.logger.emit(record)
