"""The live figures of a trace: faults per second, resident memory, loss, and whose faults; drawn twice a second."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from wstrace.analysis.summary import Summary
from wstrace.errors import Unavailable
from wstrace.ledger import Ledger
from wstrace.plugins import own_platform
from wstrace.terminal.live import LiveLines
from wstrace.terminal.output import Output
from wstrace.text import number, plural, printable, size

REDRAW_SECONDS = 0.5
#: Rows of the table, where the terminal is so many lines high.
_ROWS, _HEIGHT = 5, 12
#: The table is made again after so many times the CPU time that it took, so that it takes 2 % of a CPU at most.
_APART = 50
_NAME_LIMIT = 200


class LiveFigures:
    """A line and a small table at the bottom of a terminal while a trace runs.

    Args:
        output: a terminal.
        summary, ledger: the counts to show.
        pids: the processes whose resident memory is shown.
        owners: returns the faults so far by their line, file or the like.
    """

    def __init__(
        self, output: Output, summary: Summary, ledger: Ledger, pids: list[int], owners: Callable[[], Mapping[str, int]]
    ) -> None:
        self._summary, self._ledger, self._pids = summary, ledger, pids
        self._drawn = self._began = time.monotonic()
        self._total = 0
        self._line = LiveLines(output)
        self._owners, self._before, self._table = owners, dict[str, int](), list[str]()
        self._counted, self._due = self._began, 0.0

    def update(self) -> bool:
        """Redraws the line if half a second has passed. Returns False when the terminal is gone."""
        now = time.monotonic()
        if now - self._drawn < REDRAW_SECONDS:
            return True
        rate = (self._summary.total - self._total) / max(now - self._drawn, 1e-9)
        self._drawn, self._total = now, self._summary.total
        if now >= self._due and self._line.room >= _HEIGHT:
            self._count(now)
        return self._line.update(self._figures(rate, now - self._began), *self._table)

    def _count(self, now: float) -> None:
        """Makes the table anew: who had the most faults since the one before."""
        begun = time.thread_time()
        found = dict(self._owners())
        new = sorted(((n - self._before.get(name, 0), name) for name, n in found.items()), reverse=True)[:_ROWS]
        span = max(now - self._counted, 1e-9)
        cells = [(number(round(n / span)), printable(name, _NAME_LIMIT)) for n, name in new if n > 0]
        width = max((len(n) for n, _ in cells), default=0)
        self._table = [f"{n:>{width}}/s  {name}" for n, name in cells]
        self._before, self._counted = found, now
        self._due = now + _APART * (time.thread_time() - begun)

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
        """Removes the line and the table."""
        self._line.close()


def resident_bytes(pids: list[int]) -> int:
    """The bytes of these processes in memory now; 0 where the system does not say."""
    return sum(resident_of(pid) or 0 for pid in pids)


def resident_of(pid: int) -> int | None:
    """The bytes of a process in memory now; None where the system does not say, or the process has ended."""
    platform = own_platform()
    found = platform.process(pid) if platform is not None else None
    return found.resident if found is not None else None


def family_of(pids: Sequence[int]) -> list[int]:
    """The processes, with their children and theirs that run now, each once."""
    platform, found = own_platform(), dict.fromkeys(pids)
    if platform is not None:
        for pid in pids:
            with contextlib.suppress(Unavailable):
                found.update(dict.fromkeys(platform.descendants(pid)))
    return list(found)
