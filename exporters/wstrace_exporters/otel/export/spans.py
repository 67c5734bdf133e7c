"""One span per traced process, created when the process has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from wstrace.clock import ClockAnchor
from wstrace.text import base_name
from wstrace_exporters.otel import names
from wstrace_exporters.otel.export.processes import Process
from wstrace_exporters.otel.export.resource import clean
from wstrace_exporters.otel.propagation import TraceParent, context_of, new_id, parent, take_reserved

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


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
