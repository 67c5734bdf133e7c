"""`wstrace.otel`: the part of the exporter that applications use, counted in the process that opens the spans.

    provider.add_span_processor(FaultSpanProcessor())

The SDK lets nobody set an attribute of a span that is ending. Therefore they are put behind its limits, as the last
ones; all other processors get the span afterwards. It never raises, never blocks and takes no lock;
only the end of work on another thread takes one.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor

from wstrace_exporters.otel import names
from wstrace_exporters.otel.offloaded import follow
from wstrace_exporters.otel.spans import Counter, SpanInterval, span_intervals, thread_faults

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span as SdkSpan
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

__all__ = ["FaultSpanProcessor", "span"]


class FaultSpanProcessor(SpanProcessor):
    """Counts minor and major page faults, and bytes, of each recorded span, including children on the same thread.

    Attributes on the span: `wstrace.faults.minor`, `.major`, `.bytes` (faults times the base page size, which is the
    least that was brought in) and `wstrace.faults.quality`: exact, thread, thread_window, or thread_changed and
    not_counted, which have no numbers. What a span hands to other threads counts to it (`offloaded`).

    Args:
        counter: (minor, major) faults of the calling thread since it began. Default: the system's own counts, which
            need no privilege and no running session; Windows has none.
        max_open: the number of spans that may be open at once; further ones pass uncounted.
    """

    def __init__(self, *, counter: Counter | None = None, max_open: int = 65_536) -> None:
        self._counter = counter or thread_faults
        self._max_open = max_open
        self._forget()
        _processors.add(self)

    def _forget(self) -> None:
        """Called at first and in a forked child: no span is open."""
        self._open: dict[int, SpanInterval] = {}
        self.uncounted = 0

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Records the thread's counts so far."""
        context, above = span.context, span.parent
        if len(self._open) >= self._max_open:
            self.uncounted += 1
            return
        try:
            parent = above.span_id if above is not None else 0
            follow()
            interval = span_intervals.open(context.trace_id, context.span_id, span.name, parent)
            self._open[context.span_id] = interval
            interval.count(self._counter)
        except Exception:  # A span must never fail because it is counted.
            self.uncounted += 1

    def _on_ending(self, span: SdkSpan) -> None:
        """Puts the counts on a span."""
        interval = self._open.pop(span.context.span_id, None)
        if interval is None:
            return
        try:
            interval.name = span.name  # which may have changed meanwhile
            behind_limits: Any = span._attributes
            behind_limits._dict.update(span_intervals.close(interval, self._counter))
        except Exception:
            self.uncounted += 1

    def shutdown(self) -> None:
        """Counts no further span."""
        self._max_open = 0


@contextlib.contextmanager
def span(name: str, **attributes: AttributeValue) -> Iterator[Span]:
    """Opens a span of the application's global tracer around the body, with the page faults that the body caused.

    It has the attributes of FaultSpanProcessor, whether or not that is installed. Where the application has set up no
    OpenTelemetry SDK there is no span.

    Args:
        name: the name of the span.
        attributes: the attributes of the span.
    """
    above = trace.get_current_span().get_span_context().span_id
    with trace.get_tracer(names.SCOPE).start_as_current_span(name, attributes=attributes) as current:
        context = current.get_span_context()
        if not context.is_valid or span_intervals.knows(context.span_id):  # FaultSpanProcessor counts it
            yield current
            return
        follow()
        interval = span_intervals.open(context.trace_id, context.span_id, name, above)
        interval.count()
        try:
            yield current
        finally:
            current.set_attributes(span_intervals.close(interval))


_processors: weakref.WeakSet[FaultSpanProcessor] = weakref.WeakSet()


def _forget_all() -> None:
    for processor in list(_processors):
        processor._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
