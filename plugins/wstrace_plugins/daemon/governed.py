"""A source under the daemon's limits: told how many faults to record, and read when the account of CPU allows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import ClassVar

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch
from wstrace.interfaces import Context, Source
from wstrace.schema import PAGE_FAULT, Schema
from wstrace_plugins.daemon import OVER_MEMORY
from wstrace_plugins.daemon.limits import Limits

#: The kernel's buffers are read so often, and when one is a quarter full: a read costs as much as dozens of faults.
_PACE_SECONDS = 2.0


class Governed(Source):
    """Passes on what a source gives, within the limits.

    Args:
        source: the source. limits: those of the daemon.
    """

    name: ClassVar[str] = "governed"
    streams: ClassVar[tuple[Schema, ...]] = ()

    def __init__(self, source: Source, limits: Limits) -> None:
        self._source, self._limits = source, limits
        # what other sources say of themselves as classes
        told = ("name", "streams", "needs_target", "patient", "drain_seconds")
        vars(self).update({key: getattr(source, key) for key in told})
        self._every = 0  # none was set: the first is, so that each row says for how many it stands
        self._rows = self._in_all = 0
        self.cgroups: frozenset[int] = frozenset()  # codes of the paths of those that have faulted
        self._context = Context()
        self._ended = threading.Event()

    def open(self, context: Context) -> None:
        """Opens the source."""
        self._source.open(context)

    def start(self, context: Context) -> None:
        """Starts the source. Raises Unavailable."""
        self._context = context
        self._source.start(context)

    def drain(self, timeout: float) -> Iterable[Batch]:
        """What the source gives, page faults in their turn; without what there is no memory for."""
        self._set_rate()
        # Sources that look at times of their own limit themselves: what a trigger waits for does not come again.
        rest = self._limits.rest(time.monotonic(), time.process_time()) if PAGE_FAULT in self._source.streams else 0
        if rest > 0:
            self._ended.wait(min(rest, timeout))
            return
        for batch in self._source.drain(max(timeout, _PACE_SECONDS) if PAGE_FAULT in self._source.streams else timeout):
            if self._limits.over and not batch.schema.essential:
                self._context.ledger.add(OVER_MEMORY, len(batch), batch.schema.name)
            else:
                yield self._counted(batch)

    def _counted(self, batch: Batch) -> Batch:
        """The same batch; the trace's description says for how many faults a row of it stands on average."""
        if batch.schema is PAGE_FAULT:
            self._rows += len(batch)
            self._in_all += int(batch["sampled"].sum()) if "sampled" in batch else len(batch)
            if self._in_all > self._rows:
                self._context.info.sampled = max(2, round(self._in_all / self._rows))
            if "cgroup" in batch and (new := set(distinct(batch["cgroup"]).tolist()) - self.cgroups - {0}):
                self.cgroups |= new
        return batch

    def _set_rate(self) -> None:
        every = self._limits.every
        if every != self._every and self._source.record_one_in(every):
            self._every = every

    def wake(self) -> None:
        """Ends the wait of drain()."""
        self._ended.set()
        self._source.wake()

    def stop(self) -> Iterable[Batch]:
        """Stops the source."""
        yield from map(self._counted, self._source.stop())

    @property
    def finished(self) -> bool:
        """Whether the source is."""
        return self._source.finished

    def cancel(self) -> None:
        """Closes what open() opened."""
        self._source.cancel()

    def after_fork_in_child(self) -> None:
        """In a forked child."""
        self._source.after_fork_in_child()

    def statistics(self) -> Mapping[str, int | float]:
        """The counts of the source."""
        return self._source.statistics()
