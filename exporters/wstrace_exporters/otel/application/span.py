"""`with wstrace.span("load"):` in an application opens a span that carries the page faults of its body."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from wstrace_exporters.otel import names

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue


@contextlib.contextmanager
def span(name: str, **attributes: AttributeValue) -> Iterator[Span]:
    """Opens a span of the application's global tracer around the body, with the page faults that the body caused.

    It has the attributes of FaultSpanProcessor, whether or not that is installed. Without an OpenTelemetry SDK the span
    is not exported, but the records of a running session are still correlated with it.

    Args:
        name: the name of the span.
        attributes: the attributes of the span.
    """
    import threading

    from opentelemetry import trace

    from wstrace_exporters.otel.application.processor import (
        EXACT,
        THREAD_CHANGED,
        THREAD_WINDOW,
        fault_attributes,
        in_event_loop,
    )
    from wstrace_exporters.otel.correlation import span_intervals
    from wstrace_exporters.otel.usage import thread_faults

    with trace.get_tracer(names.SCOPE).start_as_current_span(name, attributes=attributes) as current:
        context, tid = current.get_span_context(), threading.get_native_id()
        unknown = context.is_valid and not span_intervals.knows(tid, context.span_id)  # FaultSpanProcessor may have it
        interval = span_intervals.open(context.trace_id, context.span_id, tid, name) if unknown else None
        quality = EXACT if thread_faults.exact and not in_event_loop() else THREAD_WINDOW
        minor, major = thread_faults()
        try:
            yield current
        finally:
            after = thread_faults()
            if interval is not None:
                span_intervals.close(interval)
            if threading.get_native_id() == tid:
                current.set_attributes(fault_attributes(after[0] - minor, after[1] - major, quality))
            else:
                current.set_attribute(names.SPAN_QUALITY, THREAD_CHANGED)
