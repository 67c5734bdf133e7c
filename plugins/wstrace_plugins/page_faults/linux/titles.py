"""Reads the titles that processes give themselves: `postgres: checkpointer`, `gunicorn: worker [app]`."""

from __future__ import annotations

import heapq
import itertools
import time

from wstrace.clock import now_ns
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux.live import Live
from wstrace_plugins.page_faults.linux.side_band import SideBand

#: The most processes that one look reads, at 30 us each.
_MOST_A_LOOK = 64
#: Between two looks at anything, and at one process: the first pause, which doubles, and the longest, in seconds. It is
#: longer with many processes, so that looks take 0.06 % of a CPU at most.
_APART_SECONDS, _FIRST_SECONDS, _LONGEST_SECONDS, _LONGEST_FOR_EACH = 0.05, 0.1, 2.0, 0.05
#: The most titles of a trace: a process may change its own all the time, and each is a name that stays in memory.
_MOST = 4096


class Titles:
    """Looks at live processes: soon after they are seen first, then ever more rarely, and at the end of the trace.

    Args:
        side: the side band, which knows the live processes and takes their titles.
    """

    def __init__(self, side: SideBand) -> None:
        self._side = side
        self._next, self._left = 0.0, _MOST
        #: When each process is looked at next; a number that no other entry has; its pid, which may be another's by
        #: then, the pause behind that look, and which process it is.
        self._due: list[tuple[float, int, int, float, Live]] = []
        self._number = itertools.count()

    def look_if_due(self) -> None:
        """Reads the titles of the processes whose time has come."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _APART_SECONDS
        live, due = self._side.live, self._due
        for pid in dict.fromkeys(live.came):
            if (one := live.get(pid)) is not None:
                heapq.heappush(due, (0.0, next(self._number), pid, _FIRST_SECONDS, one))
        live.came.clear()
        longest, left = max(_LONGEST_SECONDS, _LONGEST_FOR_EACH * len(live)), _MOST_A_LOOK
        while due and left and due[0][0] <= now:
            _, _, pid, pause, one = heapq.heappop(due)
            if live.get(pid) is one:
                heapq.heappush(due, (now + pause, next(self._number), pid, min(2 * pause, longest), one))
                self._look(pid)
                left -= 1

    def look_at_all(self) -> None:
        """Reads all of them, as they cannot be read afterwards."""
        for pid in self._side.live:
            self._look(pid)

    def _look(self, pid: int) -> None:
        time_ns = now_ns()  # before it is read: an execve() meanwhile makes a title void, and must come after it
        title = procfs.title(pid) if self._left else b""
        if title and self._side.titled(pid, time_ns, title):
            self._left -= 1
