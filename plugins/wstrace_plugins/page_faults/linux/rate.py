"""The rate of a trace, which may change while it runs: one out of how many faults is recorded, and since when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Changes that are remembered: rows are at most seconds late, and a rate is not changed that often.
_CHANGES = 64


class Rate:
    """One out of how many faults is recorded, at each time: a row of the kernel's does not say it.

    PERF_SAMPLE_PERIOD would, but where a software event has it, each of its events is a record, whatever the period is
    (perf_swevent_event() in kernel/events/core.c, Linux 6.18).

    Args:
        every: one out of so many is recorded at first.
    """

    def __init__(self, every: int = 1) -> None:
        self._since, self._every = [0], [every]
        self._told = every != 1

    def now_is(self, every: int, time_ns: int) -> None:
        """Since that time one out of so many faults is recorded."""
        self._told = True
        self._since, self._every = [*self._since, time_ns][-_CHANGES:], [*self._every, every][-_CHANGES:]

    def with_rates(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The columns of faults, with `sampled` unless each is recorded and no other rate was ever set.

        So a row without it is never one of a trace whose other rows stand for several faults.
        """
        if not self._told:
            return columns
        at = np.maximum(np.searchsorted(np.array(self._since, np.uint64), columns["time_ns"], side="right") - 1, 0)
        return columns | {"sampled": np.array(self._every, np.uint32)[at]}
