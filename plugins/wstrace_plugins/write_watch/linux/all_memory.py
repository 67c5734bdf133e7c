"""The watch of all writable memory of this process on Linux: includes new mappings, and reports memory that was freed.

Absent pages of private memory get no write-protection mark, which would cost page tables for all reserved memory. So a
page that never existed and one that was freed (MADV_DONTNEED) look the same. Therefore the present pages are remembered
from one read to the next, and a page that has gone from memory that is still mapped counts as written. Pages of files
and of shared memory keep their mark when they are freed: a hole made in shared memory (MADV_REMOVE) is not seen, nor
what MADV_DONTNEED undoes in a private file mapping.

Source: Linux Documentation/admin-guide/mm/pagemap.rst; mm/memory.c zap_install_uffd_wp_if_needed().
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Columns, Dictionary
from wstrace.schema import KIND_SHIFT, KIND_VDSO, MAP_SHARED, MAP_WRITE
from wstrace_plugins.os.intervals import Ranges, cut, n_bytes, within, without
from wstrace_plugins.os.linux import pagemap as pm
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.userfaultfd import Userfaultfd

_HOLDS = pm.IS_PRESENT | pm.IS_SWAPPED
_GIVE = pm.IS_WPALLOWED | pm.IS_WRITTEN | pm.IS_PFNZERO | pm.IS_FILE
_NONE: Ranges = np.empty(0, "<u8"), np.empty(0, "<u8")


def mappings(strings: Dictionary) -> Columns:
    """The columns of the calling process's mappings."""
    return procfs.read_maps(os.getpid()).of_the_user(strings)


class AllMemory:
    """All writable memory of this process under one userfaultfd; memory of another userfaultfd is left to that one.

    uffd, pagemap: of this process.
    """

    def __init__(self, uffd: Userfaultfd, pagemap: pm.Pagemap) -> None:
        self._uffd, self._pagemap = uffd, pagemap
        self._scanned: list[tuple[int, int]] = []
        self._watched = self._shared = _NONE  # the watched mappings; those of them that are shared
        self._held = _NONE  # pages of private memory that were present at the last read
        self.take()

    @property
    def nbytes(self) -> int:
        """Bytes that are watched now."""
        return n_bytes(self._watched)

    def take(self) -> list[Ranges]:
        """The written ranges, unordered; then starts to watch what was mapped since the last call."""
        found, held = self._scan()
        given_back = without(*self._held, *held)[:2]
        self._held = held
        new, stayed = self._take_in()  # after the scan, because looking for new mappings writes memory too
        return [*found, *new, within(*given_back, *stayed)[:2]]

    def reset(self) -> None:
        """Marks everything watched as not written; unlike take() it writes hardly any memory itself."""
        _, self._held = self._scan()

    def _scan(self) -> tuple[list[Ranges], Ranges]:
        """The written ranges, which count as not written from now on, and the private memory that is present."""
        parts = [self._pagemap.scan(*ends, any_of=_HOLDS, give=_GIVE, flags=pm.PM_SCAN_WP_MATCHING)
                 for ends in self._scanned]  # fmt: skip
        rows = np.concatenate([*parts, np.empty(0, pm.REGION)])
        low, high, each = cut(rows["start"], rows["end"], np.union1d(*self._shared))
        categories, private = rows["categories"][each], ~inside(low, *self._shared)
        written = (categories & pm.IS_WPALLOWED != 0) & (categories & pm.IS_WRITTEN != 0)
        # a private page that was only read is the zero page or the file's own page, unless one was there before
        unwritten = private & (categories & (pm.IS_PFNZERO | pm.IS_FILE) != 0)
        plain, doubtful = written & ~unwritten, written & unwritten
        again = within(low[doubtful], high[doubtful], *self._held)[:2]
        return [(low[plain], high[plain]), again], (low[private], high[private])

    def _take_in(self) -> tuple[list[Ranges], Ranges]:
        """Watches what was mapped since the last call: returns the pages found there, and what stays watched."""
        columns = mappings(Dictionary())
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
            except OSError:  # under another userfaultfd, unmapped, or memory that cannot be watched
                continue
            ours[row] = True
            if shared[row]:
                # reading makes pages of shared memory present too, so absent ones are marked as well
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
        # one scan for everything between two mappings that are under another userfaultfd
        group = np.cumsum(armed & ~ours)[ours]
        first = np.flatnonzero(np.diff(group, prepend=-1))
        last = np.r_[first[1:] - 1, len(group) - 1][: len(first)]
        self._scanned = list(zip(start[ours][first].tolist(), end[ours][last].tolist(), strict=True))
        return found, stayed


def inside(address: NDArray[Any], start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    """Mask of the addresses that lie in one of the ranges (sorted, disjoint)."""
    if not len(start):
        return np.zeros(len(address), bool)
    at = np.searchsorted(start, address, "right") - 1
    return (at >= 0) & (address < end[at])


def _sorted(parts: list[Ranges]) -> Ranges:
    start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    return start[order], end[order]
