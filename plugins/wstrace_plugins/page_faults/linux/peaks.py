"""Peaks: the largest resident size of the targets' descendants, read while they run.

rusage has the peak of a process and of the children that it has waited for, but only when the process has ended. It
has neither children that run on nor orphans: for a preforking server, it has the peak of the master process only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from itertools import islice

from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace.trace_info import PEAK_SEEN, Usage
from wstrace_plugins.os.linux import procfs

#: The most processes that one call of look() reads, at 20 us each; with more of them, the calls take turns.
_MOST_A_LOOK = 64
#: Between two looks: the first pause and the longest one, in seconds.
_FIRST_SECONDS, _LONGEST_SECONDS = 0.001, 0.25


class Peaks:
    """The peaks of the processes that the targets started, or had when they were attached.

    Args:
        context: the session's context, whose targets remember their own peaks.
        children: whether processes that the targets start are traced.
    """

    def __init__(self, context: Context, *, children: bool = True) -> None:
        self._info, self._targets, self._children = context.info, context.targets, children
        self._due, self._pause = 0.0, _FIRST_SECONDS
        self._own = {target.pid for target in context.targets}
        self._older: dict[int, int] = {}  # pid -> its peak in bytes when the trace began
        self._largest = (0, 0)  # bytes, pid
        self._known: set[int] = set()
        self._sampled = self._looked = False
        self._next = 0

    @property
    def seconds(self) -> float:
        """The time until the next look is due."""
        return max(self._due - time.monotonic(), _FIRST_SECONDS)

    def look_if_due(self, live: Collection[int]) -> bool:
        """Looks if it is time: False when it is not. The pauses grow."""
        if time.monotonic() < self._due:
            return False
        self._pause = min(self._pause * 2, _LONGEST_SECONDS)
        self._due = time.monotonic() + self._pause
        self.look_at_all(live)
        return True

    def look_at_all(self, live: Collection[int], *, final: bool = False) -> None:
        """Reads the peaks of the targets and of live processes, as they cannot be read afterwards."""
        for target in self._targets:
            target.usage()
        if self._children:
            self.look(live, final=final)

    def look(self, live: Collection[int], *, final: bool = False) -> None:
        """Reads the peaks of live processes: at most _MOST_A_LOOK of them, or all with `final`."""
        pids = [pid for pid in live if pid not in self._own]
        self._known.update(pids)
        if not self._looked:
            self._looked = True
            if not all(target.launched for target in self._targets):
                for pid in pids:
                    with contextlib.suppress(Unavailable):  # it has ended
                        self._older[pid] = procfs.resident(pid).peak
        if not final and len(pids) > _MOST_A_LOOK:
            first, self._next = self._next % len(pids), self._next + _MOST_A_LOOK
            pids = list(islice(pids + pids, first, first + _MOST_A_LOOK))
        for pid in pids:
            with contextlib.suppress(Unavailable):  # it has ended
                now = procfs.resident(pid)
                # What an older process had reached before the trace is not a peak of the trace.
                raised = now.peak > self._older.get(pid, 0)
                self._sampled |= not raised
                self._largest = max(self._largest, (now.peak if raised else now.now, pid))

    def usage(self, ended: Collection[int], *, orphaned: bool) -> Usage:
        """The largest peak so far, in bytes, with its process; it is noted, as rusage may tell a larger one of nobody.

        Args:
            ended: the pids of traced processes that have ended.
            orphaned: whether a process outlived its parent, so that no traced process waits for it.
        """
        waited_for = all(target.launched and target.exit_code is not None for target in self._targets)
        unseen = orphaned if waited_for else bool(set(ended) - self._own)
        peak, pid = self._largest
        if pid:
            own = [(target.own_usage().peak_resident_bytes or 0, target.pid) for target in self._targets]
            most = max([*own, (peak, pid)])
            self._info.extra[PEAK_SEEN] = {"bytes": most[0], "pid": most[1]}
        return Usage(peak_resident_bytes=peak or None, peak_pid=pid or None, peak_sampled=self._sampled or unseen)
