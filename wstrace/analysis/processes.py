"""Processes: one number per process of a trace, even where several hosts have given out the same pid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number for all processes past the limit.
UNNUMBERED = (1 << 32) - 1


class Processes:
    """Assigns 32-bit numbers to processes: the pid itself for one host, and for the first host of a merged trace.

    The column `host` of a merged trace distinguishes its hosts. Processes of the further hosts are numbered downwards
    from 2**32 - 2, where no system has pids: Linux ends at 2**22 (PID_MAX_LIMIT), and Windows gives out the smallest
    free ones.

    Args:
        limit: processes of further hosts that get a number; those past it share UNNUMBERED.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._numbers: dict[tuple[int, int], int] = {}  # (host, pid) -> number
        self._whose: dict[int, tuple[int, int]] = {}

    def numbers(self, hosts: NDArray[Any] | None, pids: NDArray[Any]) -> NDArray[np.uint64]:
        """The number of each process, shape (n,); hosts: None = all belong to the first one."""
        found = pids.astype(np.uint64)
        if hosts is not None:
            for row in np.flatnonzero(hosts).tolist():
                found[row] = self.number(int(hosts[row]), int(pids[row]))
        return found

    def number(self, host: int, pid: int) -> int:
        """The number of one process."""
        if not host:
            return pid
        known = self._numbers.get((host, pid))
        if known is None:
            if len(self._numbers) >= self._limit:
                return UNNUMBERED
            known = self._numbers[host, pid] = UNNUMBERED - 1 - len(self._numbers)
            self._whose[known] = host, pid
        return known

    def whose(self, number: int) -> tuple[int, int]:
        """The host and the pid of the process with that number."""
        return self._whose.get(number, (0, number))

    def pid(self, number: int) -> int:
        """The pid of the process with that number."""
        return self.whose(number)[1]

    def is_shared(self, number: int) -> bool:
        """Whether the number stands for several processes, namely those past the limit."""
        return number == UNNUMBERED and len(self._numbers) >= self._limit
