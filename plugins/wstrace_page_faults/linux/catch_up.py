"""Reads processes as they are now, where records that should have told of them were lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.clock import now_ns
from wstrace.errors import Unavailable
from wstrace_os.linux import procfs
from wstrace_page_faults.linux.side_band import SideBand


class CatchUp:
    """Brings a side band up to date.

    Args:
        side: the side band.
    """

    def __init__(self, side: SideBand) -> None:
        self._side = side
        self._met: set[int] = set()

    def read_maps_again(self, targets: Iterable[int]) -> None:
        """After a loss in the side band: reads the current mappings of the targets and of every live traced process."""
        self._side.stale = False
        now = now_ns()
        for pid in {*self._side.live, *targets}:
            try:
                self._side.seen(pid, now)
            except Unavailable:
                self._side.live.pop(pid, None)

    def meet(self, pids: NDArray[Any]) -> None:
        """Reads processes that fault but that no record has named, because the records of their start were lost."""
        now = now_ns()
        for pid in {*distinct(pids).tolist()} - self._met - self._side.live.keys() - self._side.ended:
            self._met.add(pid)
            with contextlib.suppress(Unavailable):  # it has ended
                if not procfs.stat(pid).gone:
                    self._side.seen(pid, now)
