"""The life of traced processes: resource, logger and start event at the start; exit event and span at the end."""

from __future__ import annotations

import os
import time
from typing import Any

from opentelemetry._logs import get_logger_provider
from opentelemetry.trace import SpanKind, Status, StatusCode, get_tracer_provider

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.interfaces import Context
from wstrace.schema import PROCESS_EXEC, PROCESS_EXIT, PROCESS_FORK, PROCESS_NAME, PROCESS_SEEN
from wstrace.text import base_name
from wstrace_exporters.otel import names
from wstrace_exporters.otel.export import resource
from wstrace_exporters.otel.export.events import Events
from wstrace_exporters.otel.export.processes import Process, Processes, clean
from wstrace_exporters.otel.propagation import TraceParent, context_of, new_id, parent, take_reserved
from wstrace_exporters.otel.transport.providers import OwnProviders, scope

#: seconds after which all faults of an ended process have arrived
SETTLE_SECONDS = 1.0
#: the exit code in a process event that has none
UNKNOWN_CODE = -1
_COLUMNS = ("pid", "tid", "event", "time_ns", "ppid", "name", "code")


class Lifecycle:
    """Follows the processes of a trace.

    Args:
        context: the session's.
        processes: their table.
        own: makes loggers and tracers; None = the application's are used.
        events, spans: whether to send them.
        arguments: whether resources contain the command's arguments.
    """

    def __init__(self, context: Context, processes: Processes, own: OwnProviders | None, *, events: bool, spans: bool,
                 arguments: bool) -> None:  # fmt: skip
        self._context, self._processes, self._own = context, processes, own
        self._with_events, self._with_spans, self._arguments = events, spans, arguments
        self._clock = context.info.clock
        self.events = Events(processes, self._clock)
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
            if event in (PROCESS_SEEN, PROCESS_FORK):
                process.parent, process.started_ns, process.ended_ns = above, process.started_ns or now, 0
            if name and event in (PROCESS_SEEN, PROCESS_FORK, PROCESS_EXEC, PROCESS_NAME):
                process.name = batch.strings[name]
            self._begin(process)
            if event == PROCESS_EXIT:
                process.ended_ns, process.code = now, None if code == UNKNOWN_CODE else code
                # a root process ends with the trace, when its exit code is known; others after the faults of this
                # drain, which arrive later
                if pid not in self._processes.roots:
                    self._ending.append((time.monotonic(), process))

    def _begin(self, process: Process) -> None:
        """A process was seen first: fixes the ids of its span, and of the span above it.

        They are those that a launched target got, below TRACEPARENT; otherwise it is below its parent process.
        """
        if process.pid in self._places:
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
                self.events.started(process)

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
            self.events.exited(process)
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
        made.end(self._clock.wall(process.ended_ns or now))
