"""Work that a span hands to other threads counts to that span.

Threads, timers and pools of the standard library (asyncio.to_thread is one) and anyio's worker threads (`def` endpoints
of Starlette and FastAPI) are given a function while a span is open; their faults in it are added to that span and to
those above it that are still open. It is OpenTelemetry's own rule: contrib's instrumentation of threading hands the
context on at the same places.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from opentelemetry.trace import get_current_span

from wstrace_exporters.otel.spans import SpanInterval, get_native_id, span_intervals, thread_faults


class _Counted(threading.local):
    """The (minor, major) faults of this thread that were counted to spans of other threads so far."""

    faults = (0, 0)


_so_far = _Counted()


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its faults on another thread counted to the span that is open here; itself without a span."""
    interval = span_intervals.opened.get(get_current_span().get_span_context().span_id)
    return function if interval is None else functools.wraps(function)(functools.partial(_run, interval, function))


def _run(interval: SpanInterval, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What the function returns. What it ran by way of this, as a pool's thread does, is not counted once more."""
    if thread_faults is None or get_native_id() == interval.tid:
        return function(*args, **kwargs)
    before, counted_before = thread_faults(), _so_far.faults
    try:
        return function(*args, **kwargs)
    finally:
        taken = _less(thread_faults(), before)
        span_intervals.add(interval, _less(taken, _less(_so_far.faults, counted_before)))
        _so_far.faults = (counted_before[0] + taken[0], counted_before[1] + taken[1])


def _less(now: tuple[int, int], before: tuple[int, int]) -> tuple[int, int]:
    return now[0] - before[0], now[1] - before[1]


def follow() -> None:
    """Counts such work from now on; what is followed already stays as it is. For each span, as anyio may come late."""
    if thread_faults is None:
        return
    if not _followed:
        _followed.update({"threads", "pools"})
        threading.Thread.start = _starting(threading.Thread.start)  # type: ignore[assignment, method-assign]
        ThreadPoolExecutor.submit = _given(ThreadPoolExecutor.submit, 1)  # type: ignore[method-assign]
    if "anyio" not in _followed and (anyio := sys.modules.get("anyio.to_thread")) is not None:
        _followed.add("anyio")
        anyio.run_sync = _given(anyio.run_sync, 0)  # type: ignore[attr-defined]


_followed: set[str] = set()


def _given(take: Callable[..., Any], place: int) -> Callable[..., Any]:
    """As `take`, but the function that it is given as that argument is counted."""

    @functools.wraps(take)
    def counting(*args: Any, **kwargs: Any) -> Any:
        functions = map(counted, args[place : place + 1])
        return take(*args[:place], *functions, *args[place + 1 :], **kwargs)

    return counting


def _starting(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """As Thread.start, but the thread's run() is counted."""

    @functools.wraps(start)
    def counting(thread: threading.Thread) -> None:
        run = counted(thread.run)

        def once() -> None:
            vars(thread).pop("run", None)  # else the thread would refer to itself; it may be tried to start twice
            run()

        thread.run = once  # type: ignore[method-assign]
        start(thread)

    return counting
