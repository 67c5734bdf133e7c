"""FaultSpanProcessor: counts the page faults of every span and puts them on it before it is exported.

    provider.add_span_processor(FaultSpanProcessor())

The SDK lets nobody set an attribute of a span that is ending. Therefore they are put behind its limits, as the last
ones; all other processors get the span afterwards. It never raises, never blocks and takes no lock.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import SpanProcessor

from wstrace.clock import now_ns
from wstrace_exporters.otel import names
from wstrace_exporters.otel.correlation import SpanInterval, span_intervals
from wstrace_exporters.otel.usage import PAGE_SIZE, thread_faults

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span
    from opentelemetry.trace import SpanContext

get_native_id, _running_loop = threading.get_native_id, asyncio._get_running_loop

#: The span began and ended on one thread, and no other span or task ran on it in between.
EXACT = "exact"
#: Other tasks or spans ran on the thread meanwhile: their faults are counted too.
THREAD_WINDOW = "thread_window"
#: The span ended on another thread than it began on, so no number can be right.
THREAD_CHANGED = "thread_changed"

Counter = Callable[[], tuple[int, int]]


class OpenSpan(SpanInterval):
    """An open span: the spans beside it on its thread, the quality of its counts, and the thread's counts before."""

    __slots__ = ("before", "beside", "parent", "quality")

    def __init__(self, tid: int, context: SpanContext, name: str, beside: list[int], parent: int, quality: str) -> None:
        self.tid, self.trace_id, self.span_id, self.name = tid, context.trace_id, context.span_id, name
        self.end, self.start = 0, now_ns()
        self.beside, self.parent, self.quality, self.before = beside, parent, quality, (0, 0)


class FaultSpanProcessor(SpanProcessor):
    """Counts minor and major page faults, and bytes, of each recorded span, including children on the same thread.

    Attributes on the span: `wstrace.faults.minor`, `.major`, `.bytes` (faults times the base page size, which is the
    least that was brought in) and `wstrace.faults.quality`: exact, thread_window or thread_changed (which has no
    numbers).

    Args:
        counter: (minor, major) faults of the calling thread since it began. Default: the system's own counts, which
            need no privilege and no running session; where there are none (Windows), the faults that a running session
            has recorded for the thread.
        max_open: the number of spans that may be open at once; further ones pass uncounted.
    """

    def __init__(self, *, counter: Counter | None = None, max_open: int = 65_536) -> None:
        self._counter = counter or thread_faults
        self._exact = EXACT if counter is not None or thread_faults.exact else THREAD_WINDOW
        self._max_open = max_open
        self._forget()
        _processors.add(self)

    def _forget(self) -> None:
        """Called at first and in a forked child: no span is open."""
        self._open: dict[int, OpenSpan] = {}
        self._here = threading.local()  # .both: the ids of the spans that are open on this thread, and its intervals.
        self.uncounted = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Records the thread's counts so far."""
        try:
            self._begin(span)
        except Exception:  # A span must never fail because it is counted.
            self.uncounted += 1

    def _begin(self, span: Span) -> None:
        if len(self._open) >= self._max_open:
            self.uncounted += 1
            return
        context, above, tid = span.context, span.parent, get_native_id()
        parent = above.span_id if above is not None else 0
        try:
            here, known_intervals = self._here.both
        except AttributeError:
            here, known_intervals = self._here.both = ([], span_intervals.of_thread(tid))
        quality = self._exact
        if _running_loop() is not None:  # Other tasks may run before the span ends.
            quality = THREAD_WINDOW
        # Spans that are already open on this thread may enclose this span, but not overlap with it.
        for other in here[-64:] if here else ():
            if other != parent and not self._is_above(other, parent) and (known := self._open.get(other)) is not None:
                known.quality = quality = THREAD_WINDOW
        entry = OpenSpan(tid, context, span.name, here, parent, quality)
        span_intervals.add(known_intervals, entry)
        here.append(entry.span_id)
        self._open[entry.span_id] = entry
        entry.before = self._counter()  # This comes last, so that the work above is not counted.

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
        """Puts the counts on a span."""
        try:
            entry = self._open.pop(span.context.span_id, None)
            if entry is not None:
                self._end(span, entry)
        except Exception:
            self.uncounted += 1

    def _end(self, span: Span, entry: OpenSpan) -> None:
        entry.name = span.name  # which may have changed meanwhile
        span_intervals.close(entry)
        entry.beside.remove(entry.span_id)
        minor, major = self._counter()
        found: dict[str, Any] = {names.SPAN_QUALITY: THREAD_CHANGED}
        if entry.tid == get_native_id():
            found = fault_attributes(minor - entry.before[0], major - entry.before[1], entry.quality)
        behind_limits: Any = span._attributes
        behind_limits._dict.update(found)

    def shutdown(self) -> None:
        """Counts no further span."""
        self._max_open = 0


def in_event_loop() -> bool:
    """Whether an asyncio event loop is running on this thread."""
    return _running_loop() is not None


def fault_attributes(minor: int, major: int, quality: str) -> dict[str, Any]:
    """The attributes for a span."""
    return {
        names.SPAN_MINOR: minor,
        names.SPAN_MAJOR: major,
        names.SPAN_BYTES: (minor + major) * PAGE_SIZE,
        names.SPAN_QUALITY: quality,
    }


_processors: weakref.WeakSet[FaultSpanProcessor] = weakref.WeakSet()


def _forget_all() -> None:
    for processor in list(_processors):
        processor._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
