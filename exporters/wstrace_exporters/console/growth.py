"""Growth: how much more memory processes and their children hold than when attached to, and whose faults brought it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from wstrace.analysis.stacks import StackRow
from wstrace.text import duration, printable, size
from wstrace_exporters.console.live import family_of, resident_of

#: The share of the growth that must certainly be a line's for it to be the answer. Measured with attaches of 4 s: a
#: leak of 50 KB in 20 ms had 2,384 faults for 2,849 pages, all of its line (the sizes are read a bit before and after
#: the faults); 30 MiB at once 7,681 faults for 7,681 pages; a server of 5 requests a second 22 faults for 3 pages.
_SHARE = 0.5
_NAME_LIMIT = 60


class Growth:
    """The resident sizes of processes now, to be compared with those at the end.

    A server's memory is that of its workers: what grew is told of all of them, or it is not known.

    Args:
        pids: the processes. children: whether their children are traced, too, and theirs.
    """

    def __init__(self, pids: Sequence[int], *, children: bool = True) -> None:
        self._pids, self._children = pids, children
        self._before = self._sizes()
        self._began = time.monotonic()
        self.bytes: int | None = None
        self.seconds = 0.0

    def _sizes(self) -> dict[int, int]:
        """The resident size of each process that has one now, in bytes."""
        pids = family_of(self._pids) if self._children else self._pids
        return {pid: held for pid in pids if (held := resident_of(pid)) is not None}

    def measure(self) -> None:
        """Reads the sizes again. `bytes` stays None where a process has ended, or a new one is there.

        A fork shares most of its memory with its parent, so that its size is not what was gained.
        """
        self.seconds = time.monotonic() - self._began
        after = self._sizes()
        if after.keys() == self._before.keys() and after.keys() >= set(self._pids):
            self.bytes = sum(after.values()) - sum(self._before.values())

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
        pid = self._pids[0] if len(self._pids) == 1 else "PID"
        whose = printable(owner, _NAME_LIMIT) or f"whose is not known: wstrace report {pid} --over-time 1s"
        return f"{told}: {whose}"
