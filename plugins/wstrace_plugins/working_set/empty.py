"""wstrace.empty_working_set(): takes a process's pages out of memory, and reports what stayed and why."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wstrace.batch import Dictionary
from wstrace.errors import Unavailable
from wstrace_plugins.working_set.backend import backend
from wstrace_plugins.working_set.working_set import read


@dataclass(frozen=True, slots=True)
class Emptied:
    """What empty_working_set() did, in bytes.

    before, after: resident set. stayed: reason -> bytes. swap_out: bytes that were swapped out meanwhile.
    left and after need not add up to before: a running process brings pages in again.
    """

    pid: int
    name: str
    before: int
    after: int
    stayed: Mapping[str, int]
    swap_out: int = 0

    @property
    def left(self) -> int:
        """Bytes by which the resident set shrank."""
        return self.before - self.after


def empty_working_set(pid: int | None = None, *, others: bool = False) -> Emptied:
    """Asks the system to take every page of a process out of memory; no data is changed, only time is lost.

    Linux: process_madvise(MADV_PAGEOUT), which takes out pages that are mapped once and clean or swappable. It reports
    success whatever it did, so the pages are read again. Windows: EmptyWorkingSet.

    Args:
        pid: the process; None = the calling process.
        others: also when the process belongs to another user.

    Raises:
        TargetExited: the process has ended.
        Unavailable: the system refuses, or the process is another user's and others is False.
    """
    strings = Dictionary()
    with backend().Space(os.getpid() if pid is None else pid) as space:
        if not others and not space.owned():
            raise Unavailable(f"process {space.pid} ({space.name}) belongs to another user", "say others=True to go on")
        before = read(space, strings)
        space.empty(before.mappings, before.runs)
        after = read(space, strings)
        codes, reasons = space.why_stayed(after.mappings, after.runs)
        stayed = np.bincount(codes, after.runs["pages"] * after.resident, len(reasons)) * space.page_size
        return Emptied(
            space.pid,
            space.name,
            before.total_bytes,
            after.total_bytes,
            {reason: int(n) for reason, n in zip(reasons, stayed, strict=True) if n},
            max(after.swapped_bytes - before.swapped_bytes, 0),
        )
