"""Write watch on Linux: userfaultfd WP_ASYNC protects, PAGEMAP_SCAN tells and protects again in one step (both 6.7).

A written page of a transparent huge page splits it for good; one of hugetlb is told as a whole. MADV_DONTNEED counts as
written. Pages that a fork shares are watched in the parent only.

Source: Linux Documentation/admin-guide/mm/pagemap.rst and userfaultfd.rst; both were added for what GetWriteWatch does.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Level
from wstrace.schema import KIND_SHIFT, KIND_VDSO, MAP_SHARED, MAP_WRITE
from wstrace_os.foreign import declare
from wstrace_os.intervals import overlap
from wstrace_os.linux import pagemap as pm
from wstrace_os.linux import procfs
from wstrace_os.linux.userfaultfd import Userfaultfd
from wstrace_write_watch.linux.agent import Agent, connect
from wstrace_write_watch.linux.soft_dirty import SoftDirtyWatcher

Runs = tuple[NDArray[Any], NDArray[Any]]
_USER_END = 1 << 63  # [vsyscall] lies above it and is no memory of the process
_MS_ASYNC = 1
_HOLDS = pm.IS_PRESENT | pm.IS_SWAPPED
_msync = declare(None, "msync", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def probe() -> Level:
    """full, or none with the reason: tried on pages of its own."""
    try:
        Watcher().close()
    except Unavailable as refused:
        return Level("none", refused.why, refused.remedy)
    return Level("full")


def allocate(nbytes: int) -> mmap.mmap:
    """Zeroed private memory, page-aligned."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # type: ignore[attr-defined, unused-ignore]
    return mmap.mmap(-1, nbytes, flags=flags)  # type: ignore[call-arg, unused-ignore]


def mappings(pid: int, strings: Dictionary) -> dict[str, NDArray[Any]]:
    """The columns of a process's mappings."""
    columns = procfs.read_maps(pid).coded(strings)
    return {name: column[columns["end"] <= _USER_END] for name, column in columns.items()}


def start_agent(path: str | None) -> Agent:
    """Lets a tracer outside of this process watch it; refuses when this process cannot be watched."""
    Watcher().close()
    return Agent(path)


def open_watcher(pid: int, agent: str = "") -> Watcher | SoftDirtyWatcher:
    """A watcher of that process: through its agent, else by soft-dirty where the kernel really has it."""
    if pid == os.getpid():
        return Watcher()
    procfs.stat_with_memory(pid)
    try:
        return Watcher(pid, agent)
    except TargetExited:
        raise
    except Unavailable as no_agent:
        try:
            return SoftDirtyWatcher(pid)
        except TargetExited:
            raise
        except Unavailable as no_bit:
            raise Unavailable(f"{no_agent.why}; {no_bit.why}", no_agent.remedy) from None


class Watcher:
    """A watch; see the package's docstring."""

    page_size = pm.PAGE

    def __init__(self, pid: int | None = None, agent: str = "") -> None:
        self.pid = os.getpid() if pid is None else pid
        self._maker = os.getpid()
        self._ranges: list[tuple[int, int]] = []  # to be scanned
        self._everything = False
        self._known = self._shared = (np.empty(0, "<u8"), np.empty(0, "<u8"))  # start, end of what is watched
        self._pending: list[NDArray[Any]] = []
        if self.pid == self._maker:
            self._uffd, self._pagemap = Userfaultfd(), pm.Pagemap()
            self._prove()
        else:  # the agent has proved itself before it hands its files over
            uffd, pagemap = connect(self.pid, agent)
            self._uffd, self._pagemap = Userfaultfd(uffd), pm.Pagemap(fd=pagemap)

    def add(self, start: int, end: int) -> None:
        """Watches these pages, nothing of them written yet."""
        self._check_maker()
        try:
            self._uffd.register(start, end)
            self._uffd.protect(start, end)
        except OSError as error:
            self._check_there()
            raise _refused(start, end, error) from None
        self._ranges.append((start, end))

    def add_writable(self) -> int:
        """Watches all writable memory, now and as it comes; gives the bytes watched.

        Absent pages of private memory get no marker (that would cost page tables for all that is merely reserved): they
        are seen by being there without protection. Memory that another userfaultfd has is left to it.
        """
        self._check_maker()
        self._everything = True
        self.written()
        return int((self._known[1] - self._known[0]).sum())

    def _take_new(self) -> list[NDArray[Any]]:
        """Takes in what was mapped since the last time; gives the pages found there."""
        columns = mappings(self.pid, Dictionary())
        start, end, shared = columns["start"], columns["end"], (columns["flags"] & MAP_SHARED) != 0
        bare = self._pagemap.scan(pm.PAGE, int(end.max(initial=pm.PAGE)), mask=pm.IS_WPALLOWED,
                                  inverted=pm.IS_WPALLOWED, give=pm.IS_WPALLOWED)  # fmt: skip
        armed = ~_inside(start, bare["start"], bare["end"])
        ours = armed & _inside(start, *self._known)
        watchable = ((columns["flags"] & MAP_WRITE) != 0) & ((columns["flags"] >> KIND_SHIFT) & 15 != KIND_VDSO)
        found = []
        for row in np.flatnonzero(watchable & ~armed).tolist():
            low, high = int(start[row]), int(end[row])
            try:
                self._uffd.register(low, high)
            except OSError:  # another userfaultfd has it, it is gone, or it is no memory that can be watched
                continue
            ours[row] = True
            found.append(self._scan_shared(low, high) if shared[row] else self._scan_everything(low, high, True))
        self._known = start[ours], end[ours]
        self._shared = start[ours & shared], end[ours & shared]
        # one scan for all that lies between two mappings that another userfaultfd has armed
        group = np.cumsum(armed & ~ours)[ours]
        first = np.flatnonzero(np.diff(group, prepend=-1))
        last = np.r_[first[1:] - 1, len(group) - 1][: len(first)]
        self._ranges = list(zip(start[ours][first].tolist(), end[ours][last].tolist(), strict=True))
        return found

    def remove(self, start: int, end: int) -> None:
        """Ends the watch of these pages."""
        self._ranges = [r for r in self._ranges if r[1] <= start or r[0] >= end]
        try:
            self._uffd.unregister(start, end)
        except OSError as error:
            self._check_there()
            raise _refused(start, end, error) from None

    def written(self, *, reset: bool = True) -> Runs:
        """Runs of written pages: addresses and numbers of pages."""
        self._check_maker()
        scan = self._scan_everything if self._everything else self._scan_region
        found = [*self._pending, *(scan(start, end, reset) for start, end in self._ranges)]
        self._check_there()
        new = self._take_new() if self._everything else []  # after the scan: looking for it writes memory too
        found += new
        self._pending = [] if reset else [*self._pending, *new]
        rows = found[0] if len(found) == 1 and len(found[0]) < pm.VEC_LEN else _joined(found)
        return rows["start"], ((rows["end"] - rows["start"]) // np.uint64(pm.PAGE)).astype("<u4")

    def reset(self) -> None:
        """Nothing of what is watched so far counts as written; unlike written() it hardly writes memory itself."""
        self._check_maker()
        self._pending = []
        for start, end in self._ranges:
            self._pagemap.scan(start, end, mask=pm.IS_WRITTEN, flags=pm.PM_SCAN_WP_MATCHING)

    def close(self) -> None:
        """Ends all watching."""
        self._uffd.close()
        self._pagemap.close()

    abandon = close

    def _scan_region(self, start: int, end: int, reset: bool) -> NDArray[Any]:
        flags = pm.PM_SCAN_CHECK_WPASYNC | (pm.PM_SCAN_WP_MATCHING if reset else 0)
        try:
            if self._mapped(start, end):
                return self._pagemap.scan(start, end, mask=pm.IS_WRITTEN, give=pm.IS_WRITTEN, flags=flags)
        except PermissionError:
            pass
        self._check_there()
        what = f"the memory at {start:#x}-{end:#x}"
        raise Unavailable(f"{what} was unmapped or mapped anew while it was watched", "make a new watch")

    def _mapped(self, start: int, end: int) -> bool:
        """Whether there is no hole in it: a scan does not tell."""
        if self.pid == self._maker:
            return bool(_msync(start, end - start, _MS_ASYNC) == 0)
        now, region = mappings(self.pid, Dictionary()), np.array([start, end], "<u8")
        return int(overlap(region[:1], region[1:], now["start"], now["end"])[0]) == end - start

    def _scan_everything(self, start: int, end: int, reset: bool) -> NDArray[Any]:
        """Without markers a page that was only read shows as the zero page, or as the file's own."""
        flags = pm.PM_SCAN_WP_MATCHING if reset else 0
        give = pm.IS_WPALLOWED | pm.IS_PFNZERO | pm.IS_FILE
        rows = self._pagemap.scan(start, end, mask=pm.IS_WRITTEN, any_of=_HOLDS, give=give, flags=flags)
        told = rows["categories"]
        read = (told & pm.IS_PFNZERO != 0) | ((told & pm.IS_FILE != 0) & ~_inside(rows["start"], *self._shared))
        kept: NDArray[Any] = rows[(told & pm.IS_WPALLOWED != 0) & ~read]
        return kept

    def _scan_shared(self, start: int, end: int) -> NDArray[Any]:
        """The first look at a shared mapping: reading makes its pages present too, so absent ones get markers."""
        rows = self._pagemap.scan(start, end, give=_HOLDS, flags=pm.PM_SCAN_WP_MATCHING)
        held: NDArray[Any] = rows[rows["categories"] != 0]
        return held

    def _prove(self) -> None:
        """Writes the second of three fresh pages and expects to see it alone: what is absent can look like silence."""
        memory = allocate(3 * pm.PAGE)
        start = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
        why, remedy = "write watch did not see a write of its own", "Linux 6.7 or newer"
        try:
            self.add(start, start + 3 * pm.PAGE)
            memory[pm.PAGE] = 1
            seen = [(runs.tolist(), pages.tolist()) for runs, pages in (self.written(), self.written())]
            self.remove(start, start + 3 * pm.PAGE)
            if seen == [([start + pm.PAGE], [1]), ([], [])]:
                return
        except Unavailable as refused:
            why, remedy = f"write watch does not work here: {refused.why}", refused.remedy
        self.close()
        raise Unavailable(why, remedy)

    def _check_there(self) -> None:
        """After scans: in an address space that is gone they just find nothing."""
        if self.pid != self._maker and self._pagemap.gone:
            raise TargetExited(f"process {self.pid} ended or executed another program while it was watched")

    def _check_maker(self) -> None:
        if os.getpid() != self._maker:
            raise Unavailable("a write watch is not inherited over fork", "make a new one in the child")


def _joined(found: list[NDArray[Any]]) -> NDArray[Any]:
    """REGION rows of several scans as one, sorted, adjacent ones joined."""
    rows = np.concatenate(found) if found else np.empty(0, pm.REGION)
    rows = rows[np.argsort(rows["start"], kind="stable")]
    first = np.flatnonzero(np.r_[True, rows["start"][1:] > rows["end"][:-1]][: len(rows)])
    joined = rows[first]
    if len(rows):
        joined["end"] = np.maximum.reduceat(rows["end"], first)
    return joined


def _inside(address: NDArray[Any], start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    """Mask: these addresses lie in one of the ranges (sorted, apart)."""
    if not len(start):
        return np.zeros(len(address), bool)
    at = np.searchsorted(start, address, "right") - 1
    inside: NDArray[Any] = (at >= 0) & (address < end[at])
    return inside


def _refused(start: int, end: int, error: OSError) -> Unavailable:
    what = f"cannot watch the memory at {start:#x}-{end:#x}"
    if error.errno == errno.EBUSY:
        return Unavailable(f"{what}: it is watched already", "close the other watch first")
    if error.errno in (errno.EINVAL, errno.ENOMEM):
        return Unavailable(f"{what}: not all of it is mapped memory that can be written, or it cuts a page of hugetlb")
    return Unavailable(f"{what}: {error.strerror}", "it must be memory that this process may write")
