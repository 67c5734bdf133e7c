"""The life of traced processes: resource, start event and metrics at the start; exit event and span at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from wstrace_exporters.otel import names
from wstrace_exporters.otel.export.resource import clean
from wstrace_exporters.otel.propagation import TraceParent, context_of, new_id, parent, take_reserved

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

import os
import time
from collections.abc import Callable
from typing import Any

from wstrace.batch import Batch
from wstrace.clock import ClockAnchor, now_ns
from wstrace.interfaces import Context
from wstrace.schema import PROCESS_EXEC, PROCESS_EXIT, PROCESS_FORK, PROCESS_NAME, PROCESS_SEEN
from wstrace.text import base_name
from wstrace_exporters.otel.export import resource
from wstrace_exporters.otel.export.events import Events
from wstrace_exporters.otel.export.processes import Process, Processes
from wstrace_exporters.otel.transport.providers import GlobalProviders, OwnProviders


class ProcessSpans:
    """A span per traced process, created when it has ended. Its ids are fixed when the process is first seen.

    Args:
        tracer: returns the tracer of a process.
        clock: wall time of a record.
        own_ids: whether the tracers are ours, so that spans can have the ids that were passed to children.
    """

    def __init__(self, tracer: Callable[[Process], Tracer], clock: ClockAnchor, *, own_ids: bool) -> None:
        self._tracer, self._clock, self._own_ids = tracer, clock, own_ids
        self._places: dict[int, TraceParent] = {}  # pid -> the span's place in its trace
        self._above: dict[int, TraceParent | None] = {}
        self.ended = 0

    def begin(self, process: Process, *, root: bool) -> None:
        """Fixes the ids of a process's span: those passed to a launched target, below TRACEPARENT; otherwise below its
        parent process."""
        if process.pid in self._places:
            return
        reserved = take_reserved() if root else None
        above = reserved.above if reserved else self._places.get(process.parent) or parent()
        own = reserved.own if reserved else TraceParent(
            above.trace_id if above else new_id(16), new_id(8),
            above.flags if above else 1)  # fmt: skip
        self._places[process.pid], self._above[process.pid] = own, above

    def end(self, process: Process, now_ns: int) -> None:
        """Creates the span of a process that has ended, or that continues when the trace ends."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        own = self._places.pop(process.pid, None)
        above = self._above.pop(process.pid, None)
        if own is None:
            return
        tracer = self._tracer(process)
        if self._own_ids:
            cast(Any, tracer).id_generator.next = own  # a ReservedIdGenerator
        attributes: dict[str, Any] = {
            names.PROCESS_PID: process.pid,
            names.PROCESS_PARENT_PID: process.parent,
            names.SPAN_MINOR: process.recorded(0),
            names.SPAN_MAJOR: process.recorded(1),
        }
        name = clean(base_name(process.name)) or str(process.pid)
        made = tracer.start_span(
            name, context_of(above), SpanKind.INTERNAL, attributes, start_time=self._clock.wall(process.started_ns)
        )
        if process.code is not None:
            made.set_attribute(names.PROCESS_EXIT_CODE, process.code)
            if process.code:
                made.set_attribute(names.ERROR_TYPE, str(process.code))
                made.set_status(Status(StatusCode.ERROR, f"exit code {process.code}"))
        made.end(self._clock.wall(process.ended_ns or now_ns))
        self.ended += 1


#: seconds after which all faults of an ended process have arrived
SETTLE_SECONDS = 1.0
#: the exit code in a process event that has none
UNKNOWN_CODE = -1


class Lifecycle:
    """Follows the processes of a trace.

    Args:
        context: the session's.
        processes: their table.
        clock: wall time of a record.
        providers: create loggers and tracers.
        own: whether the providers are ours, so that spans can have the ids that were passed to a target.
        events, spans: whether to send them.
        meter: registers the metrics of a process; also gets the number of processes that have theirs.
        arguments: whether resources contain the command's arguments.
    """

    def __init__(
        self,
        context: Context,
        processes: Processes,
        clock: ClockAnchor,
        providers: GlobalProviders | OwnProviders,
        *,
        own: bool,
        events: bool,
        spans: bool,
        meter: Callable[[Process, int], None],
        arguments: bool,
    ) -> None:
        self._context, self._processes, self._clock, self._providers = context, processes, clock, providers
        self._with_events, self._with_spans, self._meter, self._arguments = events, spans, meter, arguments
        self.events = Events(lambda process: self._cached("logger", process), clock)
        self.spans = ProcessSpans(lambda process: self._cached("tracer", process), clock, own_ids=own)
        self._made: dict[tuple[str, int], Any] = {}  # (what, pid) -> a logger, tracer or resource
        self._metered: set[int] = set()
        self._alive: set[int] = set()
        self._pending: list[Process] = []
        self._ending: list[tuple[float, Process]] = []
        self.latest_ns = 0  # of the records so far

    def root(self, pid: int) -> None:
        """Adds a process with which the trace began."""
        info = self._context.info
        names = {target.pid: target.name for target in self._context.targets}
        process = self._processes.get(pid)
        process.name = names.get(pid) or base_name(info.command[0] if info.command else "")
        process.started_ns = info.started_ns or self.now_ns()
        self._begin(process)

    def now_ns(self) -> int:
        """The current time on the records' clock; for a recorded trace its end, or the newest time that was read."""
        info = self._context.info
        return max(info.ended_ns, self.latest_ns) if info.recorded else now_ns()

    def take(self, batch: Batch) -> None:
        """Reads process events row by row, because they are few."""
        columns = [batch.columns.get(c) for c in ("ppid", "name", "code")]
        tids = batch["tid"] if "tid" in batch else batch["pid"]
        for row in range(len(batch)):
            pid, event, now = (int(batch[c][row]) for c in ("pid", "event", "time_ns"))
            parent, name, code = (int(c[row]) if c is not None else 0 for c in columns)
            process = self._processes.get(pid)
            if process.pid and int(tids[row]) in (0, pid):  # other rows are about a thread
                self._apply(process, event, now, parent, batch.strings[name], code)

    def _apply(self, process: Process, event: int, now: int, parent: int, name: str, code: int) -> None:
        if event in (PROCESS_SEEN, PROCESS_FORK):
            process.parent, process.started_ns, process.ended_ns = parent, process.started_ns or now, 0
        if name and event in (PROCESS_SEEN, PROCESS_FORK, PROCESS_EXEC, PROCESS_NAME):
            process.name = name
        self._begin(process)
        if event == PROCESS_EXIT:
            process.ended_ns, process.code = now, None if code == UNKNOWN_CODE else code
            # a root process ends with the trace, when its exit code is known; others after the faults of this drain,
            # which arrive later
            if process.pid not in self._processes.roots:
                self._ending.append((time.monotonic(), process))

    def _begin(self, process: Process) -> None:
        if process.pid not in self._alive:
            self._alive.add(process.pid)
            self._pending.append(process)
            self.spans.begin(process, root=process.pid in self._processes.roots)

    def admit(self) -> None:
        """Sends start events and metrics of processes seen since: by now their exec has named them."""
        pending, self._pending = self._pending, []
        for process in pending if self._with_events else ():
            self.events.started(process)
        if len(self._metered) < len(self._processes):
            for process in self._processes:
                if process.pid not in self._metered:
                    self._meter(process, len(self._metered))
                    self._metered.add(process.pid)

    def settle(self) -> None:
        """Does the same as admit(), and ends the processes whose last faults have arrived."""
        self.admit()
        while self._ending and time.monotonic() - self._ending[0][0] > SETTLE_SECONDS:
            self._end(self._ending.pop(0)[1], 0)

    def end_all(self) -> None:
        """At the end of the trace: makes the span of every remaining process, and exit events of those that ended."""
        now, code = self.now_ns(), self._context.info.exit_code
        for process in self._processes:
            if process.pid in self._processes.roots and code is not None:
                process.code, process.ended_ns = code, process.ended_ns or now
            self._end(process, now)

    def _end(self, process: Process, now: int) -> None:
        self.admit()
        if process.pid not in self._alive:
            return
        self._alive.discard(process.pid)
        if process.ended_ns and self._with_events:
            self.events.exited(process)
        if self._with_spans and process.pid != os.getpid():
            self.spans.end(process, now)

    def resource_of(self, pid: int) -> Any:
        """The resource of a process, created once."""
        process = self._processes.get(pid)
        found = self._made.get(("resource", process.pid))
        if found is None:
            command = self._context.info.command
            root = process.pid in self._processes.roots or not command
            started = self._clock.wall(process.started_ns) if process.started_ns else 0
            found = resource.of_process(process, started, command, arguments=self._arguments and root)
            self._made["resource", process.pid] = found
        return found

    def _cached(self, what: str, process: Process) -> Any:
        key = (what, process.pid)
        if key not in self._made:
            make = self._providers.logger if what == "logger" else self._providers.tracer
            self._made[key] = make(self.resource_of(process.pid))
        return self._made[key]
