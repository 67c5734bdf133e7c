"""Makes room for the events' descriptors by raising our own soft limit during a trace; a target keeps its limit."""

from __future__ import annotations

import os
import threading
from typing import Any

_SPARE = 64  # left for everything else in this process


class ClosedBeside:
    """Descriptors of tracepoints, closed by a thread: the last event of each waits 20 to 50 ms for all CPUs
    (tracepoint_synchronize_unregister()), while the last records are read.
    """

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._thread: threading.Thread | None = None

    def take(self, fds: list[int]) -> None:
        """Begins to close them, and empties the list."""
        self._fds += fds
        fds.clear()
        if self._fds and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._close, name="wstrace-close")
            try:
                self._thread.start()
            except RuntimeError:  # no thread can be started now
                self._thread = None

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def finish(self) -> None:
        """Waits until all are closed."""
        if self._thread is not None:
            self._thread.join()
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """In a forked child, which has no such thread: closes what is left."""
        self._thread = None
        self._close()


class Descriptors:
    """The limit RLIMIT_NOFILE of the calling process."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    @staticmethod
    def _limits() -> Any:
        import resource

        return resource

    @property
    def hard(self) -> int:
        """The hard limit, in descriptors."""
        limits = self._limits()
        hard: int = limits.getrlimit(limits.RLIMIT_NOFILE)[1]
        return hard if hard != limits.RLIM_INFINITY else 1 << 30

    def room(self, more: int) -> bool:
        """Whether `more` descriptors can be opened now; raises the soft limit if needed."""
        limits = self._limits()
        soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
        need = len(os.listdir("/proc/self/fd")) + more + _SPARE  # noqa: PTH208 - a count
        if soft == limits.RLIM_INFINITY or need <= soft:
            return True
        if need > self.hard:
            return False
        self._before = self._before or (soft, hard)
        limits.setrlimit(limits.RLIMIT_NOFILE, (need, hard))
        return True

    def restore(self) -> None:
        """Restores the soft limit."""
        if self._before is not None:
            limits = self._limits()
            limits.setrlimit(limits.RLIMIT_NOFILE, self._before)
            self._before = None
