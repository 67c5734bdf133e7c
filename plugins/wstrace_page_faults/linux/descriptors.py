"""Makes room for the events' descriptors by raising our own soft limit during a trace; a target keeps its limit."""

from __future__ import annotations

import os
from typing import Any

_SPARE = 64  # left for everything else in this process


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
