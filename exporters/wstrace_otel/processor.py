"""FaultSpanProcessor: the page faults of every span, put on it before it is exported.

    provider.add_span_processor(FaultSpanProcessor(BatchSpanProcessor(exporter)))

A processor cannot change a span that has ended, so it wraps the one that exports and hands it a span with more
attributes. It never raises, never blocks and takes no lock.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from wstrace_otel import names
from wstrace_otel.correlation import Window, windows
from wstrace_otel.usage import PAGE_SIZE, thread_faults

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span

#: the span began and ended on one thread, and no other span or task was at work on it in between
EXACT = "exact"
#: other tasks or spans ran on the thread meanwhile: their faults are counted too
THREAD_WINDOW = "thread_window"
#: it ended on another thread than it began: no number can be right
THREAD_CHANGED = "thread_changed"

Counter = Callable[[], tuple[int, int]]


@dataclass(slots=True)
class Open:
    """A span that is open: its thread, what the thread had counted, and how good the difference will be."""

    tid: int
    minor: int
    major: int
    parent: int
    quality: str
    window: Window | None


class FaultSpanProcessor(SpanProcessor):
    """Counts minor and major page faults, and bytes, of each recorded span, children on the same thread included.

    Attributes on the span: `wstrace.faults.minor`, `.major`, `.bytes` (faults times the base page size: what was
    brought in at least) and `wstrace.faults.quality`: exact, thread_window or thread_changed (which has no numbers).

    Args:
        inner: the processor that exports; it gets every span.
        counter: (minor, major) faults of the calling thread since it began. Default: what the system counts, which
            needs no privilege and no running session; where it counts none (Windows), those that a running session
            has recorded of the thread.
        max_open: spans that may be open at once; further ones pass uncounted.
    """

    def __init__(self, inner: SpanProcessor, *, counter: Counter | None = None, max_open: int = 65_536) -> None:
        self.inner = inner
        self._counter = counter or thread_faults
        self._exact = EXACT if counter is not None or thread_faults.exact else THREAD_WINDOW
        self._max_open = max_open
        self._forget()
        _processors.add(self)

    def _forget(self) -> None:
        """In a forked child, and at first: nothing is open."""
        self._open: dict[int, Open] = {}
        self._threads: dict[int, list[int]] = {}
        self.counted = self.uncounted = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Notes what the thread has counted so far."""
        self.inner.on_start(span, parent_context)
        try:
            self._begin(span)
        except Exception:  # a span must never fail for being counted
            self.uncounted += 1

    def _begin(self, span: Span) -> None:
        if not span.is_recording() or len(self._open) >= self._max_open:
            self.uncounted += 1
            return
        context, tid = span.context, threading.get_native_id()
        parent = span.parent.span_id if span.parent is not None else 0
        here = self._threads.setdefault(tid, [])
        quality = self._exact
        if in_event_loop():  # other tasks may run before the span ends
            quality = THREAD_WINDOW
        for other in here:  # open on this thread: fine for those around this span, not for those beside it
            if other != parent and not self._is_above(other, parent) and (known := self._open.get(other)) is not None:
                known.quality = quality = THREAD_WINDOW
        window = windows.open(context.trace_id, context.span_id, tid)
        entry = Open(tid, 0, 0, parent, quality, window)
        self._open[context.span_id] = entry
        here.append(context.span_id)
        entry.minor, entry.major = self._counter()  # last: what is above counts for nobody

    def _is_above(self, span_id: int, below: int) -> bool:
        for _ in range(64):
            known = self._open.get(below)
            if known is None:
                return False
            if known.parent == span_id:
                return True
            below = known.parent
        return False

    def _on_ending(self, span: Span) -> None:
        self.inner._on_ending(span)

    def on_end(self, span: ReadableSpan) -> None:
        """Hands the span on with its counts."""
        try:
            counted = self._end(span)
        except Exception:
            self.uncounted += 1
            counted = span
        self.inner.on_end(counted)

    def _end(self, span: ReadableSpan) -> ReadableSpan:
        if span.context is None or (entry := self._open.pop(span.context.span_id, None)) is None:
            return span
        minor, major = self._counter()
        windows.close(entry.window)
        here = self._threads.get(entry.tid)
        if here is not None:
            here.remove(span.context.span_id)
            if not here:
                self._threads.pop(entry.tid, None)
        self.counted += 1
        if entry.tid != threading.get_native_id():
            return with_attributes(span, {names.SPAN_QUALITY: THREAD_CHANGED})
        return with_attributes(span, fault_attributes(minor - entry.minor, major - entry.major, entry.quality))

    def shutdown(self) -> None:
        """Shuts the inner one down."""
        self.inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Flushes the inner one."""
        return self.inner.force_flush(timeout_millis)

    def statistics(self) -> dict[str, int]:
        """Spans counted, passed on uncounted, and open now."""
        return {"counted": self.counted, "uncounted": self.uncounted, "open": len(self._open)}


def in_event_loop() -> bool:
    """Whether an asyncio task is running on this thread."""
    return asyncio._get_running_loop() is not None


def fault_attributes(minor: int, major: int, quality: str) -> dict[str, Any]:
    """What stands on a span."""
    return {
        names.SPAN_MINOR: minor,
        names.SPAN_MAJOR: major,
        names.SPAN_BYTES: (minor + major) * PAGE_SIZE,
        names.SPAN_QUALITY: quality,
    }


def with_attributes(span: ReadableSpan, attributes: dict[str, Any]) -> ReadableSpan:
    """The same span with further attributes; what its limits dropped stays told."""
    merged = BoundedAttributes(attributes={**(span.attributes or {}), **attributes}, immutable=False)
    merged.dropped = span.dropped_attributes
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=merged,
        events=span._events,  # the SDK's own bounded lists: they know what they dropped
        links=span._links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


_processors: weakref.WeakSet[FaultSpanProcessor] = weakref.WeakSet()


def _forget_all() -> None:
    for processor in list(_processors):
        processor._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
