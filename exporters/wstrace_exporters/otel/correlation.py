"""Finds the span of a page fault: the innermost one that was open on the faulting thread at that time.

FaultSpanProcessor and `span` report the open spans of this process; this process's faults are looked up here. A span
counts on the thread that started it, for as long as it is open. With interleaved asyncio tasks that is not exact, so
the result is labelled `thread_window`.
"""

from __future__ import annotations

import bisect
import collections
import itertools
import os
import threading
from collections.abc import Callable

from wstrace.clock import now_ns


class SpanInterval:
    """A span on its thread: its name, its start and end in monotonic ns (end 0 = still open)."""

    __slots__ = ("end", "name", "span_id", "start", "tid", "trace_id")

    def __init__(self, tid: int, start: int, trace_id: int, span_id: int, name: str = "") -> None:
        self.tid, self.start, self.trace_id, self.span_id, self.name = tid, start, trace_id, span_id, name
        self.end = 0


#: takes a span that has ended, on its thread
Follower = Callable[[SpanInterval], None]


class SpanIntervals:
    """The spans of this process: the open ones, and the last closed ones of every thread. Bounded, without a lock.

    What a thread has is changed by that thread alone, and read by others as a copy, which is made in one step.
    """

    CLOSED = 4096
    THREADS = 1024
    NESTED = 64

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Called at first and in a forked child: no span is open."""
        self.pid = os.getpid()
        self._threads: dict[int, collections.deque[SpanInterval]] = {}
        self._followers: tuple[Follower, ...] = ()

    def follow(self, follower: Follower) -> None:
        """From now on gives the spans that end, too, until unfollow()."""
        self._followers = (*self._followers, follower)

    def unfollow(self, follower: Follower) -> list[SpanInterval]:
        """No more spans for this one; returns those that are open now, by start."""
        self._followers = tuple(one for one in self._followers if one != follower)
        found = [one for known in list(self._threads.values()) for one in list(known) if not one.end]
        return sorted(found, key=lambda one: one.start)

    def open(self, trace_id: int, span_id: int, tid: int = 0, name: str = "") -> SpanInterval:
        """Records the start of a span on this thread."""
        interval = SpanInterval(tid or threading.get_native_id(), now_ns(), trace_id, span_id, name)
        self.add(self.of_thread(interval.tid), interval)
        return interval

    def add(self, known: collections.deque[SpanInterval], interval: SpanInterval) -> None:
        """Appends a span to those of its thread; a full list lets its first closed one go, before one that is open.

        Only the first NESTED are searched, so that many open spans cost no time: a span within them may go then.
        """
        if len(known) == known.maxlen and not known[0].end:
            first = next((at for at, one in enumerate(itertools.islice(known, self.NESTED)) if one.end), 0)
            del known[first]
        known.append(interval)

    def knows(self, tid: int, span_id: int) -> bool:
        """Whether the last span of a thread is this one."""
        known = self._threads.get(tid)
        return known is not None and len(known) > 0 and known[-1].span_id == span_id

    def of_thread(self, tid: int) -> collections.deque[SpanInterval]:
        """The intervals of a thread, ordered by start, as new ones are appended."""
        known = self._threads.get(tid)
        if known is None:
            if len(self._threads) >= self.THREADS:
                # Of threads without an open span, the one that was seen first is most likely gone.
                every = list(self._threads.items())
                idle = (seen for seen, its in every if all(one.end for one in list(its)))
                self._threads.pop(next(idle, every[0][0]), None)
            known = self._threads[tid] = collections.deque(maxlen=self.CLOSED)
        return known

    def close(self, interval: SpanInterval) -> None:
        """Records the end of a span."""
        interval.end = now_ns()
        for follower in self._followers:
            follower(interval)

    def find(self, tid: int, time_ns: int) -> SpanInterval | None:
        """The innermost span that was open on that thread at that time."""
        known = list(self._threads.get(tid, ()))
        at = bisect.bisect_right(known, time_ns, key=lambda interval: interval.start)
        return next((w for w in reversed(known[:at]) if not w.end or w.end >= time_ns), None)


#: The spans of this process.
span_intervals = SpanIntervals()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=span_intervals.forget)
