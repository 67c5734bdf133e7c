"""Growth: how much more memory processes hold than when they were attached to, and whose faults brought that."""

from __future__ import annotations

import time
from collections.abc import Sequence

from wstrace.analysis.stacks import StackRow
from wstrace.text import duration, printable, size
from wstrace_console.live import resident_of

#: The share of the growth that must certainly be a line's for it to be the answer. Measured with attaches of 4 s: a
#: leak of 50 KB in 20 ms had 2,384 faults for 2,849 pages, all of its line (the sizes are read a bit before and after
#: the faults); 30 MiB at once 7,681 faults for 7,681 pages; a server of 5 requests a second 22 faults for 3 pages.
_SHARE = 0.5
_NAME_LIMIT = 60


class Growth:
    """The resident sizes of processes now, to be compared with those at the end.

    Args:
        pids: the processes.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._before = {pid: resident_of(pid) for pid in pids}
        self._began = time.monotonic()
        self.bytes: int | None = None
        self.seconds = 0.0

    def measure(self) -> None:
        """Reads the sizes again. `bytes` stays None where one is not known, as of a process that has ended."""
        self.seconds = time.monotonic() - self._began
        grown = [
            None if before is None or (now := resident_of(pid)) is None else now - before
            for pid, before in self._before.items()
        ]
        self.bytes = None if None in grown else sum(n for n in grown if n is not None)

    def owner(self, rows: Sequence[StackRow], faults: int, page_size: int) -> str:
        """The own line that brought at least half of the growth; "" = not known.

        What arrived is more than the growth where memory is given back, and less where one fault brings several pages.
        In the worst case all that other lines brought has stayed, and all that no fault tells of is another line's.
        What is left then is the line's for certain.

        Args:
            rows: the faults by own line, the most first. faults: all of them. page_size: bytes.
        """
        grown = self.bytes or 0
        if not grown > 0 or not rows:
            return ""
        best = rows[0]
        certain = min(faults * page_size, grown) - (faults - best.total) * page_size
        return best.label if best.has_stack and certain >= _SHARE * grown else ""

    def answer(self, owner: str) -> str:
        """`+9.4 MiB in 10.0 s (962.6 KiB/s): parse_record leak.py:12`; "" = not known."""
        if self.bytes is None or self.seconds <= 0:
            return ""
        if not self.bytes:
            return f"no growth in {duration(self.seconds)}"
        sign = "+" if self.bytes > 0 else "-"
        told = f"{sign}{size(abs(self.bytes))} in {duration(self.seconds)} ({size(abs(self.bytes) / self.seconds)}/s)"
        if self.bytes < 0:
            return told
        pid = next(iter(self._before)) if len(self._before) == 1 else "PID"
        whose = printable(owner, _NAME_LIMIT) or f"whose is not known: wstrace blame {pid} --over-time 1s"
        return f"{told}: {whose}"
