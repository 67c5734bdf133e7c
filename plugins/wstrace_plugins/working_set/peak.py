"""The source `peak_snapshot`: the pages of the targets and their children when they had the most in memory."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from wstrace.batch import Batch
from wstrace.errors import Unavailable, UsageError
from wstrace.interfaces import Context, Level, Source
from wstrace.schema import ADDRESS_SPACE, RESIDENT_PAGES, Schema
from wstrace_plugins.working_set.backend import backend
from wstrace_plugins.working_set.process_tree import Held, resident_bytes, sums, traced

if TYPE_CHECKING:
    from wstrace_plugins.working_set.working_set import WorkingSet

#: A look is taken when the sum of the resident sizes is larger than in the last one by this factor: the snapshot that
#: is kept lacks at most 2 % of a peak that lasts until the next look.
_GROWN = 1.02
#: The same while it grows by more than that from one reading to the next: the look that counts is that of the peak, and
#: no other one is to stand in its way.
_GROWING = 1.5
#: The share of a CPU that looks take at most: they are 20 times their own duration apart, as each holds the lock of the
#: target's mappings meanwhile. It is counted in CPU time: on a busy machine a look waits for a CPU before it begins,
#: and would push the next one away.
_MOST = 0.05
#: Readings of the sizes are as far apart (20 us a process), but without `max_cpu` not further than this.
_LONGEST_SECONDS = 0.1
#: The sums are read when the processes have not grown for so many seconds.
_SETTLED = 0.1
#: Sums are those of the peak as long as no look is larger by this factor.
_OF_THE_PEAK = 1.1


class PeakSnapshotSource(Source):
    """Runs of resident pages at the largest look, emitted at the end; of an attached process also at the start.

    The resident sizes are read every `interval`; when their sum has grown by 2 % (while it grows fast: by half), a look
    is taken, at most so many that they take `max_cpu` (about 10 ms of CPU time per GiB each). A peak that is over
    before is not seen whole: compare the `bytes` of the look with the `largest` sum that was read, and with the peak of
    one process that the system counts (`peak_resident_bytes`). Sizes of several processes are added up: what they
    share counts several times; their `pss` and `distinct` are read beside that look.

    Args:
        interval: seconds between two readings of the resident sizes.
        max_cpu: the largest share of a CPU that looks take, and readings, up to 0.05.
    """

    name: ClassVar[str] = "peak_snapshot"
    follows: ClassVar[bool] = True
    streams: ClassVar[tuple[Schema, ...]] = (RESIDENT_PAGES, ADDRESS_SPACE)

    def __init__(self, *, interval: float = 0.01, max_cpu: float = _MOST) -> None:
        if interval <= 0:
            raise UsageError(f"peak_snapshot: interval is {interval}", "give seconds above 0")
        if not 0 < max_cpu <= _MOST:
            raise UsageError(f"peak_snapshot: max_cpu is {max_cpu}", f"give a part of one CPU, above 0, up to {_MOST}")
        self._interval, self._apart = interval, 1 / max_cpu
        self._sparing = max_cpu < _MOST
        self._longest = math.inf if self._sparing else _LONGEST_SECONDS
        self._due = self._next = self._sums_due = self._grown = 0.0
        self._size = self._most = 0  # the sum of the resident sizes at the last reading, and the largest one
        self._summed = True  # as long as there is no look of several processes
        self._sums_of = 0  # the size at the look whose sums are known
        self._largest: list[WorkingSet] = []
        self._bytes, self._emitted = 0, False
        self._counts: dict[str, int | float] = {"looks": 0, "cpu_seconds": 0.0}

    @classmethod
    def probe(cls) -> Level:
        """The level that this machine gives, tried on the calling process."""
        return backend().probe()

    def start(self, context: Context) -> None:
        """Checks that the targets can be read; sparingly, what can be read at its time is enough."""
        self._context, self._backend = context, backend()
        if self._sparing:
            return
        for target in context.targets:
            with self._backend.Space(target.pid):
                pass

    def drain(self, timeout: float) -> Iterable[Batch]:
        """The snapshot at the start of an attached process; otherwise nothing before the end."""
        first = not self._counts["looks"]
        self._look_if_larger()
        self._sum_if_due()
        if first and not any(target.launched for target in self._context.targets):
            yield from self._batches()
        self._wait(min(timeout, self._interval))

    def stop(self) -> Iterable[Batch]:
        """The largest look."""
        self._look_if_larger()
        self._sum_if_due(final=True)
        if self._largest:
            self._context.info.extra["peak_snapshot"] = {
                "time_ns": self._largest[0].time_ns,
                "bytes": self._bytes,
                "largest": max(self._most, self._bytes),
            }
            if not self._emitted:
                yield from self._batches()

    def statistics(self) -> Mapping[str, int | float]:
        """Looks, CPU seconds."""
        return dict(self._counts)

    def _wait(self, seconds: float) -> None:
        """Waits so long, or until a command ends: the trace may end with it."""
        running = next((one for one in self._context.targets if one.launched and one.wait(0) is None), None)
        if running is None:
            time.sleep(seconds)
        else:
            running.wait(seconds)

    def _look_if_larger(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        spent = time.thread_time()
        pids = self._pids()
        before, self._size = self._size, sum(map(self._resident, pids))
        self._most = max(self._most, self._size)
        read = time.monotonic()
        self._next = read + min(self._apart * (time.thread_time() - spent), self._longest)
        grown = _GROWING if self._size > before * _GROWN and before else _GROWN
        if read < self._due or self._size <= self._bytes * grown:
            return
        from wstrace_plugins.working_set.working_set import working_set  # not loaded for a command that ends at once

        taken = []
        for pid in pids:
            with contextlib.suppress(Unavailable):  # it has ended, or belongs to another user
                taken.append(working_set(pid, strings=self._context.strings))
        cost = sum(one.cost_seconds for one in taken)
        self._due = time.monotonic() + self._apart * cost
        self._counts["looks"] += 1
        self._counts["cpu_seconds"] += cost
        total = sum(one.total_bytes for one in taken)
        if total > self._bytes:
            self._bytes, self._largest, self._emitted, self._summed = total, taken, False, len(taken) < 2
            self._grown = now
            if len(taken) < 2 or total > self._sums_of * _OF_THE_PEAK:
                self._context.info.extra.pop("sums", None)

    def _sum_if_due(self, *, final: bool = False) -> None:
        """Takes the sums of several processes as long as they have what the largest look saw.

        The frames of all pages are read for that, which takes ten times as long as a look: at most 5 % of the time.
        """
        now = time.monotonic()
        if self._summed or (now < max(self._sums_due, self._grown + _SETTLED) and not final):
            return
        pids = [one.pid for one in self._largest]
        self._sums_due = now + _SETTLED
        if not self._still_of(pids):
            return
        held = [Held(pid, self._resident(pid), self._backend.accounted(pid).pss) for pid in pids]
        told = sums(self._backend, held)
        self._sums_due = time.monotonic() + self._apart * (time.monotonic() - now)
        if not self._still_of(pids):  # one has ended, or given memory back, while the pages of all were read
            return
        self._summed, self._sums_of = True, self._bytes
        times = [one.time_ns for one in self._largest]
        self._context.info.extra["sums"] = {
            "from_ns": min(times), "to_ns": max(times), "pids": pids, "rss_sum": told.rss_sum,
            "pss": None if told.refused else told.pss, "distinct": told.distinct, "why": told.why,
        }  # fmt: skip

    def _still_of(self, pids: Iterable[int]) -> bool:
        """Whether these have as much as the largest look saw."""
        return self._bytes / _GROWN <= sum(map(self._resident, pids)) <= self._bytes * _GROWN

    def _resident(self, pid: int) -> int:
        return resident_bytes(self._backend, pid)

    def _pids(self) -> list[int]:
        return traced(self._context, self._backend) if self._context.live else [os.getpid()]

    def _batches(self) -> Iterator[Batch]:
        self._emitted = True
        for taken in self._largest:
            yield from taken.batches(int(self._counts["looks"]), self.name)
