"""The live line: faults a second, resident memory, loss; drawn at most twice a second, by no thread of its own."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from wstrace.analysis.summary import Summary
from wstrace.ledger import Ledger
from wstrace.text import number, plural, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

REDRAW_SECONDS = 0.5


class LiveLine:
    """One line at the bottom of a terminal while a trace runs. rich's own refresh thread stays off: a session that
    traces its own process arms threads that it does not know.

    Args:
        console: a rich console on a terminal.
        summary, ledger: what is shown.
        pids: whose resident memory is shown.
    """

    def __init__(self, console: Console, summary: Summary, ledger: Ledger, pids: list[int]) -> None:
        from rich.live import Live

        self._summary, self._ledger, self._pids = summary, ledger, pids
        self._drawn = self._began = time.monotonic()
        self._total = 0
        self._live: Live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False,
                                redirect_stderr=False)  # fmt: skip
        self._live.start()

    def update(self) -> bool:
        """Draws it again when half a second has passed. False when the terminal is gone."""
        from rich.text import Text

        now = time.monotonic()
        if now - self._drawn < REDRAW_SECONDS:
            return True
        rate = (self._summary.total - self._total) / (now - self._drawn)
        self._drawn, self._total = now, self._summary.total
        try:
            line = self._line(rate, now - self._began)
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        except (OSError, ValueError):
            return False
        return True

    def _line(self, rate: float, seconds: float) -> str:
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
        """Takes the line away."""
        with contextlib.suppress(OSError, ValueError):
            self._live.stop()


def resident_bytes(pids: list[int]) -> int:
    """Bytes in memory of those processes now, 0 where the system does not tell."""
    import psutil

    total = 0
    for pid in pids:
        try:
            total += psutil.Process(pid).memory_info().rss
        except (psutil.Error, OSError):
            continue
    return total
