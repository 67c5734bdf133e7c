"""The daemon's own limits: of how many faults one is recorded, and when its records are read, so that it keeps them.

Two means hold the CPU. Sampling makes the kernel write fewer records, which spares the traced programs, too. An account
of CPU seconds holds where sampling does not (mappings, processes and stacks come as before): nothing is read from the
kernel while it is overdrawn, and what does not fit into its buffers meanwhile is lost there, and counted.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import ClassVar

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch
from wstrace.interfaces import Context, Source
from wstrace.schema import PAGE_FAULT, Schema
from wstrace_plugins.daemon import OVER_MEMORY

#: The account holds what so many seconds give: a burst as long as this may take it all at once.
_SAVED_SECONDS = 5.0
#: While it samples, the daemon aims at this part of its limit.
_AIM = 0.7
#: Seconds of ease behind which it samples less.
_EASE_SECONDS = 5.0
#: Past one out of so many faults nothing is won: what is left then is not the cost of records.
_MOST = 1 << 16
#: The rate goes down by so much at most, and not again for so many seconds: what was recorded before it still has to be
#: worked off, and says nothing of what it costs now.
_STEP, _SETTLE_SECONDS = 4, 3.0

#: The kernel's buffers are read so often, and when one is a quarter full: a read costs as much as dozens of faults.
_PACE_SECONDS = 2.0


class Limits:
    """Follows what the daemon uses, and says what to do about it. Called by one thread; others read `every`, `over`.

    Args:
        max_cpu: part of one CPU.
        max_memory: bytes.
        now: the time at which the account opens, seconds. used: CPU seconds that were used before.

    Attributes:
        every: one out of so many faults is to be recorded.
        over: whether the daemon holds more memory than it may.
        share: the part of one CPU that it used between the last two looks.
    """

    def __init__(self, max_cpu: float, max_memory: int, now: float, used: float) -> None:
        self.max_cpu, self.max_memory = max_cpu, max_memory
        self.every, self.over, self.share = 1, False, 0.0
        self.open(now, used)
        self._settled, self._lost = now, 0

    def open(self, now: float, used: float) -> None:
        """Opens the account anew: what a session's start has used is not taken from what it may use from then on."""
        self._looked, self._used = now, used
        self._eased = now, used
        self._account = now, used  # when it was opened, and what was used then; of several threads, so one tuple

    def look(self, now: float, used: float, resident: int, lost: int = 0) -> None:
        """Takes a look: about once a second, at times that grow.

        Args:
            now: seconds. used: CPU seconds of this process so far. resident: its resident bytes.
            lost: records that were lost so far: on a busy machine it can be late without using much.
        """
        self.over = resident > self.max_memory
        seconds = now - self._looked
        if seconds <= 0:
            return
        self.share = (used - self._used) / seconds
        behind, self._lost = lost > self._lost, lost
        self._looked, self._used = now, used
        overdrawn = self.share > self.max_cpu and self._saved(now, used) <= 0
        if overdrawn or behind:
            self._eased = now, used
            if now >= self._settled:
                self._settled = now + _SETTLE_SECONDS
                fewer = max(self.share / (_AIM * self.max_cpu), 2 if behind else 0)
                self.every = min(_MOST, math.ceil(self.every * min(fewer, _STEP)))
        elif now - self._eased[0] >= _EASE_SECONDS:  # on their average: a read falls into one second or the next
            if used - self._eased[1] <= _AIM * self.max_cpu / 2 * (now - self._eased[0]):
                self.every = max(1, self.every // 2)
            self._eased = now, used

    def rest(self, now: float, used: float) -> float:
        """The seconds for which nothing is to be read from the kernel, 0 = none."""
        return max(0.0, -self._saved(now, used) / self.max_cpu)

    def _saved(self, now: float, used: float) -> float:
        """The CPU seconds on the account: what it may use at once; below 0 = it is overdrawn."""
        opened, used_then = self._account
        saved = self.max_cpu * (now - opened) - (used - used_then)
        most = self.max_cpu * _SAVED_SECONDS
        if saved > most:
            self._account = now - _SAVED_SECONDS, used
        return min(saved, most)


class Governed(Source):
    """Passes on what a source gives, within the limits.

    Args:
        source: the source. limits: those of the daemon.
    """

    name: ClassVar[str] = "governed"
    streams: ClassVar[tuple[Schema, ...]] = ()

    def __init__(self, source: Source, limits: Limits) -> None:
        self._source, self._limits = source, limits
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
