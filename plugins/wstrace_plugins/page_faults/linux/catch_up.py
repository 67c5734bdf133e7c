"""Reads processes as they are now, where records that should have told of them were lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.tally import distinct
from wstrace.clock import now_ns
from wstrace.errors import Unavailable
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux.side_band import SideBand

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KEPT = 1 << 16


class CatchUp:
    """Brings a side band up to date.

    Args:
        side: the side band.
        look: what looks at a process that is met.
    """

    def __init__(self, side: SideBand, look: Callable[[int], object] = lambda pid: None) -> None:
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
                self._side.live.pop(pid, None)

    def meet(self, columns: dict[str, NDArray[Any]]) -> bool:
        """Reads processes that fault but that no record has named: they ran before, or those of their start were lost.

        What they have mapped now holds from their first fault on.

        Args:
            columns: the faults in order of time, with pid, time_ns, va and pc.

        Returns:
            Whether the side band has anything new to give.
        """
        pids, times = columns["pid"], columns["time_ns"]
        present = distinct(pids).tolist()
        new = {*present} - self._met - self._side.live.keys() - self._side.ended
        for pid in new:
            if len(self._met) >= _KEPT:
                self._met.clear()
            self._met.add(pid)
            with contextlib.suppress(Unavailable):  # it has ended
                if not procfs.stat(pid).gone:
                    self._look(pid)
                    self._side.seen(pid, int(times[np.argmax(pids == pid)]), whole=False)
                    self._met.discard(pid)
        return self._side.asked.ask(self._side, present, columns) or bool(new)
