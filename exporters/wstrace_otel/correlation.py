"""Finds the span of a page fault: the innermost one that was open on the faulting thread at that time.

FaultSpanProcessor and `span` report the open spans of this process; this process's faults are looked up here. A span
counts on the thread that started it, for as long as it is open. With interleaved asyncio tasks that is not exact, so
the result is labelled `thread_window`.
"""

from __future__ import annotations

import bisect
import collections
import os
import threading

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch
from wstrace.clock import now_ns


class SpanInterval:
    """A span on its thread: its start and end in monotonic ns (end 0 = still open)."""

    __slots__ = ("end", "span_id", "start", "tid", "trace_id")

    def __init__(self, tid: int, start: int, trace_id: int, span_id: int) -> None:
        self.tid, self.start, self.trace_id, self.span_id = tid, start, trace_id, span_id
        self.end = 0


class SpanIntervals:
    """The spans of this process: the open ones, and the last closed ones of every thread. Bounded, without a lock.

    Lists are only appended to or replaced as a whole, which the interpreter does in one step.
    """

    CLOSED = 4096
    THREADS = 1024

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Called at first and in a forked child: no span is open."""
        self.pid = os.getpid()
        self._threads: dict[int, collections.deque[SpanInterval]] = {}

    def open(self, trace_id: int, span_id: int, tid: int = 0) -> SpanInterval:
        """Records the start of a span on this thread."""
        interval = SpanInterval(tid or threading.get_native_id(), now_ns(), trace_id, span_id)
        self.of_thread(interval.tid).append(interval)
        return interval

    def of_thread(self, tid: int) -> collections.deque[SpanInterval]:
        """The intervals of a thread, ordered by start, as new ones are appended."""
        known = self._threads.get(tid)
        if known is None:
            if len(self._threads) >= self.THREADS:
                # The thread that was seen first is most likely gone.
                self._threads.pop(next(iter(self._threads)), None)
            known = self._threads[tid] = collections.deque(maxlen=self.CLOSED)
        return known

    def close(self, interval: SpanInterval) -> None:
        """Records the end of a span."""
        interval.end = now_ns()

    def find(self, tid: int, time_ns: int) -> SpanInterval | None:
        """The innermost span that was open on that thread at that time."""
        known = list(self._threads.get(tid, ()))
        at = bisect.bisect_right(known, time_ns, key=lambda interval: interval.start)
        return next((w for w in reversed(known[:at]) if not w.end or w.end >= time_ns), None)

    def assign(self, batch: Batch) -> tuple[NDArray[np.intp], list[SpanInterval]]:
        """For each row the index of its span in the list, or -1, computed by columns.

        Args:
            batch: page faults with time_ns, pid and tid, in time order within a thread.

        Returns:
            The indices, shape (n,), and the spans that occur.
        """
        index = np.full(len(batch), -1, np.intp)
        used: list[SpanInterval] = []
        if not self._threads or not len(batch) or not {"time_ns", "pid", "tid"} <= set(batch):
            return index, used
        own = batch["pid"] == self.pid
        first, last = batch.window
        for tid, known in list(self._threads.items()) if own.any() else ():
            open_then = [w for w in list(known) if w.start <= last and (not w.end or w.end >= first)]
            rows = np.flatnonzero(own & (batch["tid"] == tid)) if open_then else index[:0]
            if not len(rows):
                continue
            times = batch["time_ns"][rows]
            for interval in open_then:  # In order of start: an inner span takes its rows from the one around it.
                low = np.searchsorted(times, interval.start, "left")
                high = np.searchsorted(times, interval.end, "right") if interval.end else len(rows)
                if low < high:
                    index[rows[low:high]] = len(used)
                    used.append(interval)
        return index, used


#: The spans of this process.
span_intervals = SpanIntervals()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=span_intervals.forget)
