"""An opened process on Linux: pagemap says what pages are, PAGEMAP_SCAN (6.7) where they are, huge and zero ones too.

pagemap costs 34 ns per present and 8 ns per absent page. PAGEMAP_SCAN without PAGE_IS_FILE costs 12 ns per present page
and nothing for an absent table: it finds the windows in which pagemap is read.

Source: Linux Documentation/admin-guide/mm/pagemap.rst, Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable
from wstrace.schema import NOT_RESIDENT
from wstrace_plugins.os.linux import pagemap as pm
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.working_set.backend import Totals
from wstrace_plugins.working_set.linux import pagemap_runs, smaps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Columns = dict[str, NDArray[Any]]

_USER_END = 1 << 63  # [vsyscall] lies above it and is no memory of the process


class Space:
    """An opened process; see backend.Space."""

    page_size = pm.PAGE

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.name = procfs.stat_with_memory(pid).name
        self._pagemap = pm.Pagemap(pid)
        self.scans = pm.has_scan()

    def mappings(self, strings: Dictionary) -> Columns:
        """The columns of its mappings, sorted by start."""
        columns = self._maps().coded(strings)
        return {name: column[columns["end"] <= _USER_END] for name, column in columns.items()}

    def runs(self, mappings: Columns, *, shares: bool = False) -> Columns:
        """Runs of pages; see backend.Space."""
        locked, hugetlb = self._special(mappings)
        regions = None
        if self.scans and len(mappings["start"]):
            low, high, special = int(mappings["start"][0]), int(mappings["end"].max()), pm.IS_HUGE | pm.IS_PFNZERO
            regions = self._pagemap.scan(low, high, any_of=pm.IS_PRESENT | pm.IS_SWAPPED, give=special)
        try:
            found = pagemap_runs.read(self._pagemap.entries, mappings, regions, shares=shares)
        except EOFError:
            raise self._gone() from None
        if not len(found["start"]):
            raise self._gone()
        return pagemap_runs.attributes(found, mappings, regions, locked, hugetlb)

    def frames(self) -> NDArray[Any]:
        """The numbers of the page frames of its resident pages, u64. Raises Unavailable without CAP_SYS_ADMIN."""
        runs = self.runs(self.mappings(Dictionary()))
        resident = (runs["flags"] & NOT_RESIDENT) == 0
        entries = self._pagemap.entries(runs["start"][resident], runs["pages"][resident])
        frames: NDArray[Any] = entries[entries >> np.uint64(63) != 0] & np.uint64(pm.PFN_MASK)
        if len(frames) and not frames.any():
            raise Unavailable("the kernel hides the numbers of page frames", "run wstrace as root")
        return frames

    def totals(self) -> Totals:
        """VmRSS and VmPTE, and HugetlbPages, which VmRSS leaves out (smaps_rollup would cost as much as a scan)."""
        status = self._status()
        return Totals(total=_kilobytes(status, "VmRSS"), page_tables=_kilobytes(status, "VmPTE"),
                      large=_kilobytes(status, "HugetlbPages"))  # fmt: skip

    def empty(self, mappings: Columns, runs: Columns) -> None:
        """process_madvise(MADV_PAGEOUT) on every run."""
        from wstrace_plugins.working_set.linux import pageout

        pageout.page_out(self.pid, runs)

    def why_stayed(self, mappings: Columns, runs: Columns) -> tuple[NDArray[Any], tuple[str, ...]]:
        """The reason why each run is still in memory."""
        from wstrace_plugins.working_set.linux import pageout

        return pageout.why_stayed(mappings, runs)

    def owned(self) -> bool:
        """True when its effective user is the caller's."""
        user: int = os.geteuid()
        return int(procfs.status(self.pid)["Uid"].split()[1]) == user

    def close(self) -> None:
        """Closes its files."""
        self._pagemap.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _maps(self) -> procfs.Maps:
        return procfs.read_maps(self.pid)

    def _status(self) -> dict[str, str]:
        return procfs.status(self.pid)

    def _smaps(self) -> bytes:
        return smaps.read(self.pid)

    def _gone(self) -> TargetExited:
        """The error for an opened address space that holds nothing any more: the process ended or called execve()."""
        try:
            ended = procfs.stat(self.pid).gone
        except TargetExited:
            ended = True
        now = "ended" if ended else "ended or executed another program"
        return TargetExited(f"process {self.pid} ({self.name}) {now} while it was read")

    def _special(self, mappings: Columns) -> tuple[NDArray[Any], NDArray[Any]]:
        """Masks of the locked and of the hugetlb mappings; smaps is read only if there is one."""
        none, status = np.zeros(len(mappings["start"]), bool), self._status()
        if not (_kilobytes(status, "VmLck") or _kilobytes(status, "HugetlbPages")):
            return none, none
        flags = smaps.parse(self._smaps())
        starts = mappings["start"].tolist()
        return (np.array(["lo" in flags.get(s, ()) for s in starts], bool),
                np.array(["ht" in flags.get(s, ()) for s in starts], bool))  # fmt: skip


def _kilobytes(status: dict[str, str], field: str) -> int | None:
    value = status.get(field, "").split()
    return int(value[0]) * 1024 if value else None
