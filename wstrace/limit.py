"""How long to wait for the end of a thread's work: longer where a busy machine gives the thread little CPU time."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable

#: A thread that has had less of a CPU than this share, at each check for IDLE_SECONDS or half of a shorter limit, is
#: not at work: it waits, or hangs. With ten busy processes on two CPUs, and others of its own process before it, one
#: that worked had as good as none for half a second now and then.
LEAST_SHARE, IDLE_SECONDS = 0.05, 2.0
#: The most that a limit is extended, as a multiple of it.
MOST = 6.0
#: Seconds between two checks of a thread's CPU time, or half of a shorter limit.
LOOK_SECONDS = 0.5


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
        self.seconds, self._thread, self._look = seconds, thread, min(LOOK_SECONDS, seconds / 2)
        self._began = self._looked = self._worked = time.monotonic()
        self._first = self._last = thread.cpu_seconds()

    def passed(self) -> bool:
        """Whether the time is over; to be called often, as by join()."""
        now, cpu = time.monotonic(), self._thread.cpu_seconds()
        if cpu is None or self._first is None or self._last is None:
            return now - self._began >= self.seconds
        if now - self._looked >= self._look:
            if cpu - self._last >= LEAST_SHARE * (now - self._looked):
                self._worked = now
            self._looked, self._last = now, cpu
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
            self._thread.join(min(rest, self._look) if rest > 0 else self._look / 2)
        return not self._thread.is_alive()
