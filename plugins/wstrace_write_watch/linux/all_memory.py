"""The watch of all writable memory of a process on Linux: what is mapped later is taken in, what is given back is told.

Absent pages of private memory get no mark of protection (that would cost page tables for all that is merely reserved).
So a page that was never there and one that was given back (MADV_DONTNEED) look the same: which pages are there is kept
from look to look, and what has gone from memory that is still mapped counts as written. Pages of files and of shared
memory keep their mark when they are given back: a hole that is made in shared memory (MADV_REMOVE) is not seen, nor
what MADV_DONTNEED undoes in a private mapping of a file.

Source: Linux Documentation/admin-guide/mm/pagemap.rst; mm/memory.c zap_install_uffd_wp_if_needed().
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Dictionary
from wstrace.schema import KIND_SHIFT, KIND_VDSO, MAP_SHARED, MAP_WRITE
from wstrace_os.intervals import cut, within, without
from wstrace_os.linux import pagemap as pm
from wstrace_os.linux import procfs
from wstrace_os.linux.userfaultfd import Userfaultfd

Ranges = tuple[NDArray[Any], NDArray[Any]]  # start, end: u64, sorted, apart
USER_END = 1 << 63  # [vsyscall] lies above it and is no memory of the process
_HOLDS = pm.IS_PRESENT | pm.IS_SWAPPED
_GIVE = pm.IS_WPALLOWED | pm.IS_WRITTEN | pm.IS_PFNZERO | pm.IS_FILE
_NONE: Ranges = np.empty(0, "<u8"), np.empty(0, "<u8")


def mappings(pid: int, strings: Dictionary) -> dict[str, NDArray[Any]]:
    """The columns of a process's mappings."""
    columns = procfs.read_maps(pid).coded(strings)
    return {name: column[columns["end"] <= USER_END] for name, column in columns.items()}


class AllMemory:
    """All writable memory of a process under one userfaultfd; what another one has is left to it.

    Args:
        pid: whose.
        uffd, pagemap: of that process.
        check: raises when the process has ended or executed another program.
    """

    def __init__(self, pid: int, uffd: Userfaultfd, pagemap: pm.Pagemap, check: Callable[[], None]) -> None:
        self._pid, self._uffd, self._pagemap, self._check = pid, uffd, pagemap, check
        self._scanned: list[tuple[int, int]] = []
        self._watched = self._shared = _NONE  # the mappings; the shared ones of them
        self._held = _NONE  # pages of private memory that were there at the last look
        self._pending: list[Ranges] = []  # found in new memory by looks that did not reset
        self.look()

    @property
    def nbytes(self) -> int:
        """Bytes that are watched now."""
        return int((self._watched[1] - self._watched[0]).sum())

    def look(self, *, reset: bool = True) -> list[Ranges]:
        """What was written, in no order; then what was mapped since the last look is taken in.

        reset: it counts as not written from now on.
        """
        found, held = self._scan(reset)
        self._check()
        given_back = without(*self._held, *held)[:2]
        if reset:
            self._held = held
        new, stayed = self._take_in()  # after the scan: looking for it writes memory too
        found += [*self._pending, *new, within(*given_back, *stayed)[:2]]
        self._pending = [] if reset else [*self._pending, *new]
        return found

    def reset(self) -> None:
        """Nothing of what is watched so far counts as written; unlike look() it hardly writes memory itself."""
        self._pending = []
        _, self._held = self._scan(True)

    def _scan(self, reset: bool) -> tuple[list[Ranges], Ranges]:
        """What is written, and what private memory is there."""
        flags = pm.PM_SCAN_WP_MATCHING if reset else 0
        parts = [self._pagemap.scan(*ends, any_of=_HOLDS, give=_GIVE, flags=flags) for ends in self._scanned]
        rows = np.concatenate([*parts, np.empty(0, pm.REGION)])
        low, high, each = cut(rows["start"], rows["end"], np.union1d(*self._shared))
        categories, private = rows["categories"][each], ~inside(low, *self._shared)
        written = (categories & pm.IS_WPALLOWED != 0) & (categories & pm.IS_WRITTEN != 0)
        # a page of private memory that was only read is the zero page or the file's own, unless one was there before
        unwritten = private & (categories & (pm.IS_PFNZERO | pm.IS_FILE) != 0)
        plain, doubtful = written & ~unwritten, written & unwritten
        again = within(low[doubtful], high[doubtful], *self._held)[:2]
        return [(low[plain], high[plain]), again], (low[private], high[private])

    def _take_in(self) -> tuple[list[Ranges], Ranges]:
        """Watches what was mapped since the last time: the pages found there, and what was watched and still is."""
        columns = mappings(self._pid, Dictionary())
        start, end, shared = columns["start"], columns["end"], (columns["flags"] & MAP_SHARED) != 0
        bare = self._pagemap.scan(pm.PAGE, int(end.max(initial=pm.PAGE)), mask=pm.IS_WPALLOWED,
                                  inverted=pm.IS_WPALLOWED, give=pm.IS_WPALLOWED)  # fmt: skip
        armed = ~inside(start, bare["start"], bare["end"])
        ours = armed & inside(start, *self._watched)
        stayed = start[ours & ~shared], end[ours & ~shared]
        watchable = ((columns["flags"] & MAP_WRITE) != 0) & ((columns["flags"] >> KIND_SHIFT) & 15 != KIND_VDSO)
        found: list[Ranges] = []
        held = [self._held]
        for row in np.flatnonzero(watchable & ~armed).tolist():
            low, high = int(start[row]), int(end[row])
            try:
                self._uffd.register(low, high)
            except OSError:  # another userfaultfd has it, it is gone, or it is no memory that can be watched
                continue
            ours[row] = True
            if shared[row]:
                # reading makes pages of shared memory present too, so absent ones get marks
                rows = self._pagemap.scan(low, high, give=_HOLDS, flags=pm.PM_SCAN_WP_MATCHING)
                rows = rows[rows["categories"] != 0]
            else:
                rows = self._pagemap.scan(low, high, any_of=_HOLDS, give=_GIVE, flags=pm.PM_SCAN_WP_MATCHING)
                held.append((rows["start"], rows["end"]))
                rows = rows[rows["categories"] & (pm.IS_PFNZERO | pm.IS_FILE) == 0]
            found.append((rows["start"], rows["end"]))
        self._watched = start[ours], end[ours]
        self._shared = start[ours & shared], end[ours & shared]
        self._held = _sorted(held)
        # one scan for all that lies between two mappings that another userfaultfd has armed
        group = np.cumsum(armed & ~ours)[ours]
        first = np.flatnonzero(np.diff(group, prepend=-1))
        last = np.r_[first[1:] - 1, len(group) - 1][: len(first)]
        self._scanned = list(zip(start[ours][first].tolist(), end[ours][last].tolist(), strict=True))
        return found, stayed


def inside(address: NDArray[Any], start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    """Mask: these addresses lie in one of the ranges (sorted, apart)."""
    if not len(start):
        return np.zeros(len(address), bool)
    at = np.searchsorted(start, address, "right") - 1
    found: NDArray[Any] = (at >= 0) & (address < end[at])
    return found


def _sorted(parts: list[Ranges]) -> Ranges:
    start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    return start[order], end[order]
