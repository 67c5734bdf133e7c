"""Growth: how much more memory processes hold than when they were attached to, and whose faults brought that."""

from __future__ import annotations

import time
from collections.abc import Sequence

from wstrace.analysis.stacks import StackRow
from wstrace.text import duration, printable, size
from wstrace_console.live import resident_of

#: A line answers for the growth where the faults brought about as much as there is more, and at least half are its own:
#: with many more faults than growth, other lines may have brought what stayed.
_FEWEST, _MOST, _SHARE = 0.7, 1.3, 0.5
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
        """The own line that brought the growth; "" = not known.

        Args:
            rows: the faults by own line, the most first. faults: all of them. page_size: bytes.
        """
        brought, grown = faults * page_size, self.bytes or 0
        if not grown > 0 or not rows or not _FEWEST * grown <= brought <= _MOST * grown:
            return ""
        best = rows[0]
        return best.label if best.has_stack and best.total >= _SHARE * faults else ""

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
