"""The spans of this process: which one was open on a thread at a time, and the page faults within each.

FaultSpanProcessor and `span` report the spans; this process's faults are looked up here. A span counts on the thread
that started it, for as long as it is open, and on those that it gave work to (`offloaded`). With interleaved asyncio
tasks that is not exact, so the result is labelled `thread_window`.

The faults are those that the system counts of a thread: getrusage(2), RUSAGE_THREAD (Linux 2.6.26), ru_minflt and
ru_majflt: 0.6 us per call, no privilege. Windows counts none by thread.
"""

from __future__ import annotations

import bisect
import collections
import functools
import importlib
import itertools
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from wstrace.batch import Batch, Dictionary
from wstrace.clock import now_ns
from wstrace.interfaces import Context, Enricher
from wstrace.schema import DTYPES, SPAN, SPAN_OPEN
from wstrace_exporters.otel import names
from wstrace_exporters.otel.names import SPANS_LOST

#: All faults that the process took meanwhile, and no other span or task ran on the span's thread in between.
EXACT = "exact"
#: As exact, but other threads took faults that count to no work of this span: whether they worked for it is not known.
THREAD = "thread"
#: Other tasks or spans ran on the thread meanwhile: their faults are counted too.
THREAD_WINDOW = "thread_window"
#: The span ended on another thread than it began on, so no number can be right.
THREAD_CHANGED = "thread_changed"
#: This system does not count the faults of a thread: there are no numbers.
NOT_COUNTED = "not_counted"

#: returns the (minor, major) page faults of the calling thread since it began
Counter = Callable[[], tuple[int, int]]
#: takes a span that has ended, on its thread
Follower = Callable[["SpanInterval"], None]
get_native_id = threading.get_native_id


def _faults_of(who: str) -> Counter | None:
    """Returns the system's own counter of the calling thread or of the process; None = it has none of threads."""
    try:
        resource: Any = importlib.import_module("resource")
        read = functools.partial(resource.getrusage, getattr(resource, who))
    except (ImportError, AttributeError):
        return None
    return lambda: read()[6:8]  # ru_minflt and ru_majflt, cheaper than by name


thread_faults = _faults_of("RUSAGE_THREAD")
process_faults = _faults_of("RUSAGE_SELF")


def _in_event_loop() -> bool:
    """Whether an asyncio event loop is running on this thread: other tasks may run before the span ends."""
    asyncio: Any = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


class SpanInterval:
    """A span on its thread: its name, its start and end in monotonic ns (end 0 = still open), and its counts.

    above: the span that it lies within. beside: the spans that are open on its thread. quality: of the counts.
    before, of_process: the counts of the thread and of the process at the start. elsewhere: those of other threads that
    worked for it.
    """

    __slots__ = ("above", "before", "beside", "elsewhere", "end", "name", "of_process", "quality", "span_id", "start",
                 "tid", "trace_id")  # fmt: skip

    def __init__(self, tid: int, trace_id: int, span_id: int, name: str, beside: list[SpanInterval]) -> None:
        self.tid, self.trace_id, self.span_id, self.name, self.beside = tid, trace_id, span_id, name, beside
        self.start, self.end, self.before, self.elsewhere = now_ns(), 0, (0, 0), (0, 0)
        self.above: SpanInterval | None = None
        self.of_process: tuple[int, int] | None = None
        self.quality = THREAD_WINDOW if _in_event_loop() else EXACT

    def count(self, counter: Counter | None = thread_faults) -> None:
        """Counts from now on, also what the process takes in all, if the counter is the system's own."""
        if counter is not None:
            self.before = counter()
            if counter is thread_faults and process_faults is not None:
                self.of_process = process_faults()


class SpanIntervals:
    """The spans of this process: the open ones, and the last closed ones of every thread. Bounded. Without a lock, but
    for what other threads add.

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
        self.opened: dict[int, SpanInterval] = {}  # by span id
        self._adding = threading.Lock()  # by threads that worked for a span, at their end alone
        self._threads: dict[int, collections.deque[SpanInterval]] = {}
        self._followers: tuple[Follower, ...] = ()
        self._here = threading.local()  # .both: of this thread all its intervals, and those that are open

    def follow(self, follower: Follower) -> None:
        """From now on gives the spans that end, too, until unfollow()."""
        self._followers = (*self._followers, follower)

    def unfollow(self, follower: Follower) -> list[SpanInterval]:
        """No more spans for this one; returns those that are open now, by start."""
        self._followers = tuple(one for one in self._followers if one != follower)
        found = [one for known in list(self._threads.values()) for one in list(known) if not one.end]
        return sorted(found, key=lambda one: one.start)

    def open(self, trace_id: int, span_id: int, name: str = "", parent: int = 0) -> SpanInterval:
        """Records the start of a span on this thread, below the span of the id `parent`.

        Its caller counts from here (`SpanInterval.count`) as the last thing, so that the work here is not counted.
        """
        tid = get_native_id()
        try:
            known, here = self._here.both
        except AttributeError:
            known, here = self._here.both = self._of_thread(tid), []
        interval = SpanInterval(tid, trace_id, span_id, name, here)
        if here and here[-1].span_id != parent:  # it may overlap with those that are open
            for other in (*here[-self.NESTED :], interval):
                other.quality = THREAD_WINDOW
        if len(known) == known.maxlen and not known[0].end:
            # A full list lets its first closed one go, before one that is open. Only the first NESTED are searched,
            # so that many open spans cost no time: a span within them may go then.
            first = next((at for at, one in enumerate(itertools.islice(known, self.NESTED)) if one.end), 0)
            del known[first]
        known.append(interval)
        here.append(interval)
        interval.above = self.opened.get(parent)
        self.opened[span_id] = interval
        return interval

    def add(self, interval: SpanInterval, faults: tuple[int, int]) -> None:
        """Counts (minor, major) faults of another thread to a span and to those above it, as far as they are open."""
        above: SpanInterval | None = interval
        with self._adding:
            while above is not None and not above.end:
                above.elsewhere = above.elsewhere[0] + faults[0], above.elsewhere[1] + faults[1]
                above = above.above

    def close(self, interval: SpanInterval, counter: Counter | None = thread_faults) -> dict[str, Any]:
        """Records the end of a span. Returns the attributes with its counts."""
        interval.end = now_ns()
        for follower in self._followers:
            follower(interval)
        self.opened.pop(interval.span_id, None)
        interval.beside.remove(interval)
        if interval.tid != get_native_id():
            return {names.SPAN_QUALITY: THREAD_CHANGED}
        if counter is None:
            return {names.SPAN_QUALITY: NOT_COUNTED}
        in_all = sum(process_faults()) - sum(interval.of_process) if process_faults and interval.of_process else 0
        counts = zip(counter(), interval.before, interval.elsewhere, strict=True)
        minor, major = (after - before + elsewhere for after, before, elsewhere in counts)
        if interval.quality == EXACT and in_all > minor + major:
            interval.quality = THREAD
        return {
            names.SPAN_MINOR: minor,
            names.SPAN_MAJOR: major,
            names.SPAN_BYTES: (minor + major) * mmap.PAGESIZE,
            names.SPAN_QUALITY: interval.quality,
        }

    def knows(self, span_id: int) -> bool:
        """Whether the last span of this thread is this one."""
        known = self._threads.get(get_native_id())
        return known is not None and len(known) > 0 and known[-1].span_id == span_id

    def _of_thread(self, tid: int) -> collections.deque[SpanInterval]:
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

    def find(self, tid: int, time_ns: int) -> SpanInterval | None:
        """The innermost span that was open on that thread at that time."""
        known = list(self._threads.get(tid, ()))
        at = bisect.bisect_right(known, time_ns, key=lambda interval: interval.start)
        return next((w for w in reversed(known[:at]) if not w.end or w.end >= time_ns), None)


#: The spans of this process.
span_intervals = SpanIntervals()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=span_intervals.forget)


#: spans that wait to be recorded
MOST_ENDED = 65_536
_HALF = (1 << 64) - 1


class RecordedSpans(Enricher):
    """Adds the spans that have ended before the next batch, and at last those that are still open."""

    name = "spans"

    def __init__(self) -> None:
        self._ended: deque[SpanInterval] = deque()
        self._follows = False
        self.lost = 0

    def start(self, context: Context) -> None:
        """Follows the spans of this process, where it is traced."""
        self._context = context
        if context.live and os.getpid() in context.info.targets and context.wants(SPAN):
            self._follows = True
            span_intervals.follow(self._take)

    def _take(self, span: SpanInterval) -> None:
        """Takes a span that has ended; one for which there is no room is counted. Without a lock."""
        if len(self._ended) < MOST_ENDED:
            self._ended.append(span)
        else:
            self.lost += 1

    def enrich(self, batch: Batch) -> Iterable[Batch]:
        """Yields the spans that have ended, then the batch."""
        yield from self._rows([])
        yield batch

    def close(self) -> Iterable[Batch]:
        """Yields the last spans."""
        if self._follows:
            yield from self._rows(span_intervals.unfollow(self._take))
            if self.lost:
                self._context.ledger.add(SPANS_LOST, self.lost)

    def _rows(self, still_open: list[SpanInterval]) -> Iterator[Batch]:
        """The spans that have ended, then those."""
        spans = [self._ended.popleft() for _ in range(len(self._ended))] + still_open
        if not spans:
            return
        code, pid, now = self._context.strings.code, span_intervals.pid, now_ns()
        rows = {
            "time_ns": [one.start for one in spans],
            "end_ns": [one.end or now for one in spans],
            "pid": [pid] * len(spans),
            "tid": [one.tid for one in spans],
            "name": [code(_text(one.name)) for one in spans],
            "flags": [0 if one.end else SPAN_OPEN for one in spans],
            "span_id": [one.span_id for one in spans],
            "trace_high": [one.trace_id >> 64 & _HALF for one in spans],
            "trace_low": [one.trace_id & _HALF for one in spans],
        }
        import numpy as np  # not with every import of wstrace.span

        columns = {column.name: np.array(rows[column.name], DTYPES[column.type]) for column in SPAN.columns}
        times = columns["time_ns"]
        yield Batch(SPAN, columns, window=(int(times.min()), int(times.max())), source=self.name,
                    strings=self._context.strings)  # fmt: skip


def _text(name: object) -> str:
    """The name of a span, cut where it is too long; OpenTelemetry takes what is no text, too: its type is said then."""
    if not isinstance(name, str):
        return f"({type(name).__name__})"
    most = Dictionary.MAX_NAME_CHARS
    return name if len(name) <= most else name[: most - 3] + "..."
