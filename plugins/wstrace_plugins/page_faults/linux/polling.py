"""What /proc says beside the records: mappings where some were lost, titles of processes, peaks of memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from itertools import islice

import numpy as np

from wstrace.analysis.tally import distinct
from wstrace.batch import Columns
from wstrace.clock import now_ns
from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace.trace_info import Usage
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux.side_band import SideBand

_KEPT = 1 << 16


class CatchUp:
    """Brings a side band up to date. look: what looks at a process that is met."""

    def __init__(self, side: SideBand, look: Callable[[int], object]) -> None:
        self._side, self._look = side, look
        self._met: set[int] = set()

    def read_maps_again(self, targets: Iterable[int]) -> None:
        """After a loss in the side band: reads the current mappings of the targets and of every live traced process."""
        self._side.stale = False
        now = now_ns()
        for pid in {*self._side.live, *targets}:
            try:
                self._side.seen(pid, now)
            except Unavailable:
                self._side.live.gone(pid)

    def meet(self, columns: Columns) -> bool:
        """Reads processes that fault but that no record has named: they ran before, or those of their start were lost.

        What they have mapped now holds from their first fault on.
        columns: the faults in order of time, with pid, time_ns, va and pc. Returns whether the side band has anything
        new to give.
        """
        pids, times = columns["pid"], columns["time_ns"]
        new = {*distinct(pids).tolist()} - self._met - self._side.live.keys() - self._side.ended
        for pid in new:
            if len(self._met) >= _KEPT:
                self._met.clear()
            self._met.add(pid)
            with contextlib.suppress(Unavailable):  # it has ended
                if not procfs.stat(pid).gone:
                    self._look(pid)
                    self._side.seen(pid, int(times[np.argmax(pids == pid)]))
                    self._met.discard(pid)
        return bool(new)


#: The most processes of which a title is read at once, at 30 us each, and how many of these are the newest; and between
#: two turns of all, at least and for each process, so that these take 0.06 % of a CPU at most. In seconds.
_MOST_A_LOOK, _NEWEST, _APART_SECONDS, _TURN_SECONDS, _SECONDS_EACH = 64, 4, 0.1, 0.5, 0.05
#: The most titles of a trace: a process may change its own all the time, and each is a name that stays in memory.
_MOST = 4096


class Titles:
    """Reads the titles of live processes: those of the newest, of all in turn, and of all at the end of the trace.

    side: the side band, which knows the live processes and takes their titles.
    """

    def __init__(self, side: SideBand) -> None:
        self._side = side
        self._due, self._turn_due, self._left = 0.0, 0.0, _MOST
        self._turn: list[int] = []

    def read_if_due(self) -> None:
        """Reads the titles of the newest processes, and those of all in turn."""
        now = time.monotonic()
        if now < self._due:
            return
        live = self._side.live
        self._due = now + _APART_SECONDS
        if not self._turn and now >= self._turn_due:
            self._turn, self._turn_due = list(live), now + max(_TURN_SECONDS, _SECONDS_EACH * len(live))
        self._turn, due = self._turn[:-_MOST_A_LOOK], self._turn[-_MOST_A_LOOK:]
        self.read({*due, *islice(reversed(live), _NEWEST)})

    def read(self, pids: Iterable[int]) -> None:
        """Reads the titles of these processes: at the end of those that are live, as they cannot be read afterwards."""
        for pid in pids:
            time_ns = now_ns()  # before it is read: an execve() meanwhile makes a title void, and must come after it
            title = procfs.title(pid) if self._left else b""
            if title and self._side.titled(pid, time_ns, title):
                self._left -= 1


#: The most processes that one call of read() reads, at 20 us each; with more of them, the calls take turns.
_MOST_READ = 64
#: Between two reads: the first pause and the longest one, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.25


class Peaks:
    """The peaks of the processes that the targets started, or had when they were attached.

    context: the session's context; its targets remember their own peaks. children: whether processes that the targets
    start are traced.
    """

    def __init__(self, context: Context, *, children: bool) -> None:
        self._targets, self._children = context.targets, children
        self._due, self._pause = 0.0, _FIRST_PAUSE
        self._own = {target.pid for target in context.targets}
        self._older: dict[int, int] = {}  # pid -> its peak in bytes when the trace began
        self._largest = (0, 0)  # bytes, pid
        self._sampled = self._begun = False
        self._next = 0

    @property
    def seconds(self) -> float:
        """The time until the next read is due."""
        return max(self._due - time.monotonic(), _FIRST_PAUSE)

    def read_if_due(self, live: Collection[int]) -> bool:
        """Reads them if it is time: False when it is not. The pauses grow."""
        if time.monotonic() < self._due:
            return False
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        self._due = time.monotonic() + self._pause
        self.read(live)
        return True

    def read(self, live: Collection[int], *, final: bool = False) -> None:
        """Reads the peaks of the targets and of live processes, as they cannot be read afterwards.

        Of processes at most _MOST_READ are read, or all with `final`.
        """
        for target in self._targets:
            target.usage()
        pids = [pid for pid in live if pid not in self._own] if self._children else []
        if not self._begun and not all(target.launched for target in self._targets):
            for pid in pids:
                with contextlib.suppress(Unavailable):  # it has ended
                    self._older[pid] = procfs.resident(pid)[0]
        self._begun = True
        if not final and len(pids) > _MOST_READ:
            first, self._next = self._next % len(pids), self._next + _MOST_READ
            pids = list(islice(pids + pids, first, first + _MOST_READ))
        for pid in pids:
            with contextlib.suppress(Unavailable):  # it has ended
                peak, now = procfs.resident(pid)
                # What an older process had reached before the trace is not a peak of the trace.
                raised = peak > self._older.get(pid, 0)
                self._sampled |= not raised
                self._largest = max(self._largest, (peak if raised else now, pid))

    def usage(self, ended: Collection[int], *, orphaned: bool) -> Usage:
        """The largest peak so far, in bytes, with its process.

        ended: the pids of traced processes that have ended. orphaned: whether a process outlived its parent, so that no
        traced process waits for it.
        """
        waited_for = all(target.launched and target.exit_code is not None for target in self._targets)
        unseen = orphaned if waited_for else bool(set(ended) - self._own)
        peak, pid = self._largest
        return Usage(peak_resident_bytes=peak or None, peak_pid=pid or None, peak_sampled=self._sampled or unseen)
