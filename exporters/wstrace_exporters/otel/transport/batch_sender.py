"""BatchSender: a bounded queue and a thread that deliver the items of one signal, and count the lost ones.

The SDK's batch processors drop the oldest items silently and may delay an exit by half a minute when the collector is
down. Here every item is either delivered or counted in the ledger, and close() keeps its deadline.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wstrace.ledger import Ledger
from wstrace_exporters.otel.names import LOST

#: The seconds that an exporter's close() may take when the collector is down, and what its user can do.
CLOSE_SECONDS = 3.0
REMEDY = "is a collector listening there? OTEL_EXPORTER_OTLP_ENDPOINT says where it is"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a request: the number of records that the receiver refused, and why it failed ("" = it did not)."""

    rejected: int = 0
    error: str = ""
    retry_after: float | None = None
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How items are batched: the queue's length, a full batch's length, and how many seconds a partial batch waits."""

    queue: int = 2048
    batch: int = 512
    delay: float = 5.0

    @classmethod
    def from_environment(cls, prefix: str) -> BatchLimits:
        """The limits set by PREFIX_MAX_QUEUE_SIZE, PREFIX_MAX_EXPORT_BATCH_SIZE and PREFIX_SCHEDULE_DELAY (ms)."""
        queue = _number(f"{prefix}_MAX_QUEUE_SIZE", 2048)
        batch = min(_number(f"{prefix}_MAX_EXPORT_BATCH_SIZE", 512), queue)
        default = 1000 if prefix == "OTEL_BLRP" else 5000
        return cls(max(1, queue), max(1, batch), _number(f"{prefix}_SCHEDULE_DELAY", default) / 1000)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isdigit() else default


class BatchSender:
    """Delivers items in order, in batches.

    Args:
        signal: its name in the ledger, after `otel.`.
        deliver: sends a batch of items to the receiver; runs on the sender's thread and may raise.
        ledger: counts items that were refused, dropped or given up, as `lost_otel`.
        limits: how much is queued and batched, and how long a partial batch waits.
        records_in: the number of records in an item.
        collect: returns items after each delay and at the end (this is how metrics are read); or None.
        cumulative: each collection includes everything in the one before it, so only the last one can be lost.
    """

    def __init__(
        self,
        signal: str,
        deliver: Callable[[Sequence[Any]], Outcome],
        ledger: Ledger,
        limits: BatchLimits,
        *,
        records_in: Callable[[Any], int] = lambda item: 1,
        collect: Callable[[], Sequence[Any]] | None = None,
        cumulative: bool = False,
    ) -> None:
        self.signal, self._deliver, self._ledger, self._limits = signal, deliver, ledger, limits
        self._records_in, self._collect, self._cumulative = records_in, collect, cumulative
        self._items: collections.deque[Any] = collections.deque()
        self._ready = threading.Condition()
        self._closing = self._flush = self.failing = False
        self._in_flight = 0
        self.delivered = self.lost = self.failures = 0
        self.error = ""
        self.thread = threading.Thread(target=self._run, name=f"wstrace-otel-{signal}", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self.thread.start()

    def put(self, item: Any, wait: float = 0.0) -> bool:
        """Queues an item. If the queue is full, the item is counted as lost and the result is False.

        Args:
            item: the item to deliver.
            wait: seconds to wait for room; ignored while deliveries fail, when waiting would only delay the caller.
        """
        with self._ready:
            if wait:
                self._ready.wait_for(
                    lambda: self.failing or self._closing or len(self._items) < self._limits.queue, wait
                )
            if len(self._items) < self._limits.queue and not self._closing:
                self._items.append(item)
                if len(self._items) >= self._limits.batch:
                    self._ready.notify()
                return True
        self._lose(self._records_in(item))
        return False

    def flush(self) -> None:
        """Starts the delivery of what is queued, without waiting for it."""
        with self._ready:
            self._flush = True
            self._ready.notify()

    def stop(self) -> None:
        """Accepts no more items; what is queued is still delivered."""
        with self._ready:
            self._closing = True
            self._ready.notify()

    def join(self, until: float) -> None:
        """Waits for the end until that time (monotonic seconds); what is left then is counted as lost."""
        if self.thread.ident is None:
            return
        self.thread.join(max(0.0, until - time.monotonic()))
        if self.thread.is_alive():
            with self._ready:
                left = sum(self._records_in(item) for item in self._items) + self._in_flight
                self._items.clear()
                self._in_flight = 0
            self.error = self.error or "did not answer in time"
            self._lose(left)

    def statistics(self) -> dict[str, int | float]:
        """The numbers of delivered and lost records, failed deliveries and waiting items."""
        return {f"{self.signal}_delivered": self.delivered, f"{self.signal}_lost": self.lost,
                f"{self.signal}_failures": self.failures, f"{self.signal}_queued": len(self._items)}  # fmt: skip

    def _run(self) -> None:
        due = time.monotonic() + self._limits.delay
        while True:
            with self._ready:
                while not self._closing and not self._flush and len(self._items) < self._limits.batch:
                    if (rest := due - time.monotonic()) <= 0:
                        break
                    self._ready.wait(rest)
                closing, timed = self._closing, self._flush or time.monotonic() >= due
                self._flush = False
            if timed or closing:
                due = time.monotonic() + self._limits.delay
            if self._collect is not None and (timed or closing):
                self._queue_collected(self._collect)
            while self._items and (closing or timed or len(self._items) >= self._limits.batch):
                self._deliver_batch()
            if closing:
                return

    def _queue_collected(self, collect: Callable[[], Sequence[Any]]) -> None:
        if self._cumulative:
            self._items.clear()
        try:
            self._items.extend(collect())
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _deliver_batch(self) -> None:
        with self._ready:
            batch = [self._items.popleft() for _ in range(min(self._limits.batch, len(self._items)))]
            self._in_flight = sum(self._records_in(item) for item in batch)
            self._ready.notify_all()
        try:
            outcome = self._deliver(batch)
        except Exception as error:  # An item that cannot be encoded must not end the thread.
            outcome = Outcome(error=f"{type(error).__name__}: {error}")
        with self._ready:
            sent, self._in_flight = self._in_flight, 0
        if not sent:  # join() has given the batch up and counted it.
            return
        lost = sent if outcome.error else min(outcome.rejected, sent)
        self.failing = bool(outcome.error)
        if outcome.error:
            self._fail(outcome.error)
            if self._cumulative and not self._closing:
                self._items.clear()
        self.delivered += sent - lost
        self._lose(lost)

    def _fail(self, error: str) -> None:
        self.failures += 1
        self.error = error

    def _lose(self, n: int) -> None:
        if n and (self._closing or not self._cumulative):
            self.lost += n
            self._ledger.add(LOST, n, f"otel.{self.signal}")
