"""Bus: a bounded queue, the enrichers in order, and one guarded queue per exporter.

publish() never blocks: a batch that does not fit is dropped and counted. An exporter that is slow, raises or hangs
affects no other exporter. Every queue is bounded in bytes, so memory does not depend on the length of a trace.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from wstrace.batch import Batch, checked
from wstrace.errors import Unavailable, log, named, pass_interrupt, quietly, why
from wstrace.interfaces import Context, Enricher, Exporter, Progress
from wstrace.ledger import Ledger

#: A thread that has had less of a CPU than this share, at each check for IDLE_SECONDS or half of a shorter limit, is
#: not at work: it waits, or hangs. With ten busy processes on two CPUs, and others of its own process before it, one
#: that worked had as good as none for half a second now and then.
LEAST_SHARE, IDLE_SECONDS = 0.05, 2.0
#: The most that a limit is extended, as a multiple of it.
MOST = 6.0
#: Seconds between two checks of a thread's CPU time, or half of a shorter limit.
CHECK_SECONDS = 0.5


class WorkThread(threading.Thread):
    """A daemon thread that tells others how much CPU time it has had."""

    _clock: Callable[[], float] | None = None

    def run(self) -> None:
        """Notes the clock of its CPU time, which only the thread itself can ask for safely, and works."""
        clock_of, read = (getattr(time, name, None) for name in ("pthread_getcpuclockid", "clock_gettime"))
        if clock_of is not None and read is not None:  # Windows has neither
            self._clock = functools.partial(read, clock_of(threading.get_ident()))
        super().run()

    def cpu_seconds(self) -> float | None:
        """Its CPU time so far; None before its beginning, after its end, and where the system does not tell."""
        if self._clock is not None:
            with contextlib.suppress(OSError):  # it has ended
                return self._clock()
        return None


class Limit:
    """A time limit, which begins now, for the work that a thread has left.

    It passes after so many seconds. A thread that has had fewer seconds of CPU time by then, as other programs run, has
    more time as long as it is at work: until it has had them, and for MOST times as many seconds at most.
    """

    def __init__(self, seconds: float, thread: WorkThread) -> None:
        self.seconds, self._thread, self._every = seconds, thread, min(CHECK_SECONDS, seconds / 2)
        self._began = self._checked = self._worked = time.monotonic()
        self._first = self._last = thread.cpu_seconds()

    def passed(self) -> bool:
        """Whether the time is over; to be called often, as by join()."""
        now, cpu = time.monotonic(), self._thread.cpu_seconds()
        if cpu is None or self._first is None or self._last is None:
            return now - self._began >= self.seconds
        if now - self._checked >= self._every:
            if cpu - self._last >= LEAST_SHARE * (now - self._checked):
                self._worked = now
            self._checked, self._last = now, cpu
        if now - self._began < self.seconds:
            return False
        idle = now - self._worked >= min(IDLE_SECONDS, self.seconds / 2)
        return idle or cpu - self._first >= self.seconds or now - self._began >= MOST * self.seconds

    def rest(self) -> float:
        """Seconds until it passes at the earliest; negative when it has been extended, or has passed."""
        return self._began + self.seconds - time.monotonic()

    def join(self) -> bool:
        """Waits for the thread's end; returns whether that came before the time was over."""
        while self._thread.is_alive() and not self.passed():
            rest = self.rest()
            self._thread.join(min(rest, self._every) if rest > 0 else self._every / 2)
        return not self._thread.is_alive()


QUEUE_BYTES = 48 << 20
#: Essential batches (mappings, processes) may fill a queue to this multiple of its limit.
ESSENTIAL_ROOM = 2
#: An exporter that may wait is given batches when so many bytes are queued, or the first has waited so long: where all
#: CPUs are busy, what is written of a burst of faults takes no CPU from the program that takes them.
GATHERED_BYTES, GATHERED_SECONDS = 16 << 20, 0.5
#: Consecutive failures after which an exporter is detached.
ERROR_BUDGET = 3
#: Seconds for which a hanging exporter or enricher may delay stop(); one that works on a busy machine has more: Limit.
STOP_SECONDS = 5.0
#: A patient source (one whose records can wait) is read again when every queue holds fewer bytes than this.
PATIENT_BYTES = 4 << 20
_DRAIN_SHARE = 0.8  # the fraction of the stop time for exporting queued batches; the rest is for flush and close


def _begin(enricher: Enricher, context: Context) -> Sequence[Batch]:
    enricher.start(context)
    return ()


class Queue:
    """A queue of batches, bounded in bytes. put() never blocks."""

    def __init__(self, limit: int = QUEUE_BYTES) -> None:
        self._limit = limit
        self.progress = Progress()
        self._items: collections.deque[Batch] = collections.deque()
        self._ready = threading.Condition()
        self._closed = False
        self._gathering = False  # get() has a batch, and waits for more to come
        self._giving = False  # of many that get() waited for, some are left
        self.bytes = self.internal_bytes = 0

    def put(self, batch: Batch) -> bool:
        """Adds the batch; returns False when the queue is full or closed. Internal batches have as much room apart."""
        size = batch.nbytes
        limit = self._limit * ESSENTIAL_ROOM if batch.schema.essential else self._limit
        with self._ready:
            held = self.internal_bytes if batch.schema.internal else self.bytes
            # What only waits for more to come is as good as taken: without this, an idle taker's queue would drop.
            has_room = not held or held + size <= limit or (self._gathering and not self._is_much)
            if self._closed or not has_room:
                return False
            self._items.append(batch)
            self._count(batch, size)
            self.progress.waiting += 1
            self._ready.notify()
        return True

    @property
    def _is_much(self) -> bool:
        return self.bytes + self.internal_bytes >= min(GATHERED_BYTES, self._limit // 3)

    def _count(self, batch: Batch, size: int) -> None:
        self.progress.essential_bytes += size * batch.schema.essential
        if batch.schema.internal:
            self.internal_bytes += size
        else:
            self.bytes += size

    def get(self, timeout: float, *, gathered: bool = False) -> Batch | None:
        """The next batch, or None after timeout seconds or when closed and empty; gathered: of many that have come."""
        with self._ready:
            if not self._items and not self._closed:
                self._ready.wait(timeout)
            if gathered and self._items and not self._giving:
                self._gathering = True
                self._ready.wait_for(lambda: self._closed or self._is_much, GATHERED_SECONDS)
                self._gathering = False
            if not self._items:
                return None
            batch = self._items.popleft()
            self.progress.waiting -= 1
            self._giving = bool(self._items)
            self._count(batch, -batch.nbytes)
            return batch

    def close(self) -> None:
        """Refuses further batches; those in the queue can still be taken."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    @property
    def empty(self) -> bool:
        """Whether no batch waits."""
        return not self._items

    @property
    def drained(self) -> bool:
        """Whether the queue is closed and empty."""
        return self._closed and not self._items

    def clear(self, *, internal: bool = False) -> int:
        """Drops the waiting batches of internal streams, or those of all others; returns their number of rows."""
        with self._ready:
            dropped = [batch for batch in self._items if batch.schema.internal is internal]
            self._items = collections.deque(batch for batch in self._items if batch.schema.internal is not internal)
            self.progress.waiting = len(self._items)
            for batch in dropped:
                self._count(batch, -batch.nbytes)
        return sum(map(len, dropped))


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread. Raises Unavailable when the system cannot create one."""
    try:
        thread.start()
    except RuntimeError as refused:
        raise Unavailable(
            f"there is no room for the thread {thread.name}: {refused}",
            "allow more address space or processes: ulimit -v, ulimit -u",
        ) from None


class Worker(abc.ABC):
    """A daemon thread that takes batches from its queue until that is closed and drained."""

    def __init__(self, name: str, limit: int) -> None:
        self.queue = Queue(limit)
        self.gathers = False
        self.limit: Limit | None = None  # of the time for what is left, once no more comes
        self.thread = WorkThread(target=self._run, name=f"wstrace-{name}", daemon=True)

    def _run(self) -> None:
        ticked = time.monotonic()
        while not self.queue.drained and not (self.limit is not None and self.limit.passed()):
            batch = self.queue.get(timeout=1.0, gathered=self.gathers)
            if batch is not None:
                self.take(batch)
                batch = None  # free its memory now: the next batch may come much later
            if time.monotonic() - ticked >= 1.0:
                ticked = time.monotonic()
                self.tick()
        self.end()

    def stop(self, seconds: float) -> None:
        """Closes the queue and lets the thread drain it within that time: see Limit."""
        self.limit = Limit(seconds, self.thread)
        self.queue.close()

    @abc.abstractmethod
    def take(self, batch: Batch) -> None:
        """Handles one batch."""

    @abc.abstractmethod
    def tick(self) -> None:
        """Called about once a second."""

    @abc.abstractmethod
    def end(self) -> None:
        """Called after the last batch, or when the time for it is over."""


class ExporterQueue(Worker):
    """The queue and the thread of one exporter, whose calls are guarded; live: no source waits for what it takes."""

    def __init__(self, exporter: Exporter, ledger: Ledger, limit: int, *, live: bool) -> None:
        super().__init__(exporter.name, limit)
        self.gathers = live and exporter.may_wait
        self.exporter = exporter
        self.name = exporter.name
        self.cancelled = False  # whether the session failed to start
        self.detached = ""  # why the exporter was detached
        self.error = ""  # the last error
        self._ledger = ledger
        self._failures = 0
        self._in_flight = 0

    def offer(self, batch: Batch) -> None:
        """Queues a batch if the exporter wants its stream; counts the batch as dropped when there is no room."""
        if self.exporter.streams is not None and batch.schema.name not in self.exporter.streams:
            return
        if self.detached or not self.queue.put(batch):
            self._ledger.add("dropped_exporter", len(batch), self.name)

    def take(self, batch: Batch) -> None:
        """Exports one batch under guard."""
        if self.detached:
            self._ledger.add("dropped_exporter", len(batch), self.name)
            return
        self._in_flight = len(batch)
        if not self._guard(lambda: self.exporter.export(batch)):
            self._ledger.add("failed_exporter", len(batch), self.name)
        self._in_flight = 0

    def tick(self) -> None:
        """Calls the exporter's tick()."""
        if not self.detached:
            self._guard(self.exporter.tick)

    def end(self) -> None:
        """Counts what is left when the time is over as dropped, then flushes and closes."""
        self._ledger.add("dropped_exporter", self.queue.clear(), self.name)
        if not self.detached and not self.cancelled:
            rest = self.limit.rest() if self.limit is not None else 0.0
            self._guard(lambda: self.exporter.flush(max(0.1, rest)))
        self._guard(self.exporter.cancel if self.cancelled else self.exporter.close)

    def join(self, limit: Limit) -> None:
        """Waits for the thread's end within a limit, then counts what is left and abandons the daemon thread."""
        if not limit.join():
            self.detached = f"did not finish in {limit.seconds:g} s"
            self._ledger.add("dropped_exporter", self.queue.clear() + self._in_flight, self.name)

    def _guard(self, call: Callable[[], None]) -> bool:
        """Returns False when the call raised; after ERROR_BUDGET raises in a row the exporter is detached."""
        try:
            call()
        except BaseException as error:
            pass_interrupt(error)
            self._failures += 1
            self.error = why(error)
            log().debug("exporter %s", self.name, exc_info=True)
            if self._failures >= ERROR_BUDGET:
                self.detached = self.error
            return False
        self._failures = 0
        return True


class Bus(Worker):
    """Takes batches from the sources, passes them through the enrichers and offers them to every queue."""

    def __init__(
        self,
        enrichers: Sequence[Enricher],
        exporter_queues: Sequence[ExporterQueue],
        ledger: Ledger,
        limit: int,
        patience: float,
    ) -> None:
        super().__init__("bus", limit)
        self.enrichers = list(enrichers)
        self.detached: dict[str, str] = {}
        self.exporter_queues = list(exporter_queues)
        self._ledger = ledger
        self._patience = patience  # seconds for which a worker without progress may hold up a patient source
        self.hanging = ""  # which enricher did not finish, as a message
        self._at_work = ""
        self._in_flight = 0

    def publish(self, batch: Batch) -> None:
        """Queues a batch without blocking; a batch that does not fit is counted as `dropped_bus`."""
        internal = batch.schema.internal  # no record of the trace: its loss costs what an enricher would make of it
        if len(batch) and not internal:
            self._ledger.add("recorded", len(batch), batch.schema.name)
        if not self.queue.put(batch):
            self._ledger.add("unconsumed" if internal else "dropped_bus", len(batch), batch.schema.name)

    def wait_for_room(self, stopping: threading.Event) -> None:
        """Waits until every queue is nearly empty, or for `patience` seconds without progress. For patient sources."""
        held, since = -1, time.monotonic()
        while not stopping.is_set():
            waiting = max(worker.queue.bytes for worker in (self, *self.exporter_queues))
            if waiting != held:
                held, since = waiting, time.monotonic()
            if waiting < PATIENT_BYTES or time.monotonic() - since > self._patience:
                return
            time.sleep(0.002)

    def start(self, context: Context) -> None:
        """Starts the enrichers, then the threads of the exporters and of the bus."""
        self.queue.progress = context.progress
        for enricher in list(self.enrichers):
            with named(f"enricher {enricher.name}"):
                self._guard(enricher, functools.partial(_begin, enricher, context))
        for worker in (*self.exporter_queues, self):
            start_thread(worker.thread)

    def take(self, batch: Batch) -> None:
        """Passes one batch through the enrichers to the exporters' queues."""
        self._in_flight = 0 if batch.schema.internal else len(batch)
        self._pass_on([batch], self.enrichers)
        self._in_flight = 0

    def tick(self) -> None:
        """Does nothing: an enricher is called with a batch only."""

    def end(self) -> None:
        """Counts what the queue still held at the deadline; the enrichers emit what they held back."""
        self._ledger.add("unconsumed", self.queue.clear(internal=True))
        self._ledger.add("dropped_bus", self.queue.clear())
        for position, enricher in enumerate(list(self.enrichers)):
            self._pass_on(self._guard(enricher, enricher.close), self.enrichers[position + 1 :])

    def finish(self, seconds: float = STOP_SECONDS) -> None:
        """Drains the bus, then the exporters' queues, each within `seconds` (see Limit); counts the rest as dropped."""
        self.stop(seconds * _DRAIN_SHARE)
        if not Limit(seconds, self.thread).join():
            held = sum(enricher.held for enricher in self.enrichers)
            self._ledger.add("dropped_enricher", self.queue.clear() + self._in_flight + held, self._at_work)
            self.hanging = f"enricher {self._at_work} did not finish in {seconds:g} s"
        for last in (False, True):
            queues = [queue for queue in self.exporter_queues if queue.exporter.ends_last is last]
            for queue in queues:
                queue.stop(seconds * _DRAIN_SHARE)
            limits = [Limit(max(seconds, queue.exporter.close_seconds), queue.thread) for queue in queues]
            for queue, limit in zip(queues, limits, strict=True):
                queue.join(limit)

    def cancel(self, opened: Iterable[Exporter]) -> None:
        """Ends the running threads. Each opened exporter undoes its start, on its own thread if that runs."""
        running = [queue for queue in self.exporter_queues if queue.thread.ident is not None]
        for queue in running:
            queue.cancelled = True
        if self.thread.ident is not None:
            self.finish(1.0)
        else:
            for queue in running:
                queue.stop(1.0)
            for queue in running:
                queue.join(Limit(1.0, queue.thread))
        for exporter in opened:
            if not any(queue.exporter is exporter for queue in running):
                quietly(exporter.cancel, None)

    def _pass_on(self, batches: Iterable[Batch], enrichers: Sequence[Enricher]) -> None:
        batches = list(batches)
        for enricher in list(enrichers):
            batches = [out for batch in batches for out in self._enrich(enricher, batch)]
        for batch in batches:
            if batch.schema.internal:
                self._ledger.add("unconsumed", len(batch), batch.schema.name)
                continue
            for queue in self.exporter_queues:
                queue.offer(batch)

    def _enrich(self, enricher: Enricher, batch: Batch) -> list[Batch]:
        return self._guard(enricher, lambda: enricher.enrich(batch), otherwise=[batch])

    def _guard(
        self, enricher: Enricher, call: Callable[[], Iterable[Batch]], otherwise: Sequence[Batch] = ()
    ) -> list[Batch]:
        """The result of the call, or `otherwise`. An enricher that raises is detached; batches go on without it."""
        if enricher.name in self.detached:
            return list(otherwise)
        self._at_work = enricher.name
        try:
            return [checked(batch) for batch in call()]
        except BaseException as error:
            pass_interrupt(error)
            self.detached[enricher.name] = why(error)
            log().error("enricher %s is detached: %s", enricher.name, self.detached[enricher.name], exc_info=True)
            self._ledger.add("failed_enricher", sum(len(b) for b in otherwise), enricher.name)
            return list(otherwise)
