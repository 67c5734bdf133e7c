"""The source `working_set`: snapshots of the resident pages of the targets, once or every interval."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.errors import Unavailable, UsageError
from wstrace.interfaces import Context
from wstrace_plugins.os.few_notes import FewNotes
from wstrace_plugins.working_set.process_tree import SnapshotSource, traced
from wstrace_plugins.working_set.working_set import working_set

_FIRST_SECONDS, _MOST_SECONDS = 0.05, 1.0  # between snapshots of a launched process; doubled each time


class WorkingSetSource(SnapshotSource):
    """Runs of resident pages with their attributes, of the targets and their children.

    A snapshot costs about 10 ms per GiB in memory. A process that has ended cannot be read any more: its last snapshot
    is the last one that the interval took; the fact `snapshot_age_ms` says how long before the end that was. The
    launched target itself is read at its exit by `final_snapshot`, where possible.

    A mark (`session.mark()`) also asks for a snapshot, which `report --at MARK` is of; marks that follow each other
    sooner than max_cpu permits share one.

    Args:
        interval: seconds between two snapshots, 0 = one snapshot; by default an attached process is read at the start
            and at the end, a launched one after 50 ms, 100 ms, 200 ms ... and then every second.
        shares: also count the mappings of each page (Linux: /proc/kpagecount, root only); by default where that is
            possible and several processes are traced, of which the shared pages would count for each otherwise.
        max_cpu: at most this share of one CPU; the interval is stretched to stay below it.
    """

    name = "working_set"
    follows = True

    def __init__(self, *, interval: float | None = None, shares: bool | None = None, max_cpu: float = 0.05) -> None:
        if interval is not None and interval < 0:
            raise UsageError(f"working_set: interval is {interval}", "give seconds, 0 for one snapshot")
        if not 0 < max_cpu <= 1:
            raise UsageError(f"working_set: max_cpu is {max_cpu}", "give a part of one CPU, above 0 and up to 1")
        super().__init__()
        self._interval, self._shares, self._max_cpu = interval, shares, max_cpu
        self._due = self._earliest = 0.0
        self._pause = interval or 0.0
        self._finished = False
        self._last_ns = self._begun_ns = 0

    def start(self, context: Context) -> None:
        """Checks that the targets can be read; a launched one is read from its first interval on."""
        super().start(context)
        launched = any(target.launched for target in context.targets)
        if self._interval is None:
            self._pause = _FIRST_SECONDS if launched else math.inf
        if self._shares:
            working_set(shares=True)
        self._due = time.monotonic() + (min(self._pause, _FIRST_SECONDS) if launched else 0)

    def drain(self, timeout: float) -> Iterable[Batch]:
        """The snapshots that are due; waits at most timeout seconds for them."""
        marked = any(time_ns > self._begun_ns for time_ns in self._context.last_mark)
        wait = (min(self._due, self._earliest) if marked else self._due) - time.monotonic()
        if self._finished or wait > timeout:
            time.sleep(timeout)
            return
        time.sleep(max(wait, 0))
        yield from self._sample()
        self._finished = self._interval == 0

    def stop(self) -> Iterable[Batch]:
        """A last snapshot of what still runs."""
        if not self._finished:
            yield from self._sample()
        if self._last_ns:
            self._context.info.snapshot_age_ms = (now_ns() - self._last_ns) // 1_000_000
        few = FewNotes(self._context.info)
        for pid, why in self._refused.items():
            few.add("processes of which the memory was refused", f"the memory of process {pid}: {why}")
        few.end()

    @property
    def finished(self) -> bool:
        """True after the single snapshot, when no interval was set."""
        return self._finished

    def _sample(self) -> Iterator[Batch]:
        """Takes a snapshot of every process, then sets the time of the next one from what this one cost."""
        self._begun_ns, before = now_ns(), self._cpu_seconds
        pids = traced(self._context, self._backend)
        if self._shares is None and len(pids) > 1:
            self._shares = _counted()
        for taken in self._snapshots(pids, shares=bool(self._shares)):
            self._last_ns = taken.time_ns
            yield from taken.batches(self._number, self.name)
        cost = self._cpu_seconds - before
        self._earliest = time.monotonic() + cost / self._max_cpu
        self._due = max(time.monotonic() + self._pause, self._earliest)
        if self._interval is None:
            self._pause = self._pause if math.isinf(self._pause) else min(self._pause * 2, _MOST_SECONDS)


def _counted() -> bool:
    """Whether the mappings of pages can be counted here."""
    try:
        working_set(shares=True)
    except Unavailable:
        return False
    return True
