"""The live figures of a trace: faults per second, resident memory, loss; drawn at most twice a second."""

from __future__ import annotations

import time

from wstrace.analysis.summary import Summary
from wstrace.ledger import Ledger
from wstrace.terminal.live import LiveLine
from wstrace.terminal.output import Output
from wstrace.text import number, plural, size

REDRAW_SECONDS = 0.5


class LiveFigures:
    """One line at the bottom of a terminal while a trace runs.

    Args:
        output: a terminal.
        summary, ledger: the counts to show.
        pids: the processes whose resident memory is shown.
    """

    def __init__(self, output: Output, summary: Summary, ledger: Ledger, pids: list[int]) -> None:
        self._summary, self._ledger, self._pids = summary, ledger, pids
        self._drawn = self._began = time.monotonic()
        self._total = 0
        self._line = LiveLine(output)

    def update(self) -> bool:
        """Redraws the line if half a second has passed. Returns False when the terminal is gone."""
        now = time.monotonic()
        if now - self._drawn < REDRAW_SECONDS:
            return True
        rate = (self._summary.total - self._total) / max(now - self._drawn, 1e-9)
        self._drawn, self._total = now, self._summary.total
        return self._line.update(self._figures(rate, now - self._began))

    def _figures(self, rate: float, seconds: float) -> str:
        lost = sum(n for _, _, n in self._ledger.losses())
        resident = resident_bytes(self._pids)
        parts = [
            f"{int(seconds) // 60}:{int(seconds) % 60:02}",
            plural(self._summary.total, "fault"),
            f"{number(round(rate))}/s",
            f"{number(self._summary.major)} from disk",
            *([f"{size(resident)} resident"] if resident else []),
            f"{number(lost)} lost",
        ]
        return "  ".join(parts)

    def close(self) -> None:
        """Removes the line."""
        self._line.close()


def resident_bytes(pids: list[int]) -> int:
    """The bytes of these processes in memory now; 0 where the system does not say."""
    return sum(resident_of(pid) or 0 for pid in pids)


def resident_of(pid: int) -> int | None:
    """The bytes of a process in memory now; None where the system does not say, or the process has ended.

    One that has ended and is not waited for yet has a size of 0.
    """
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss) or None
    except (psutil.Error, OSError):
        return None
