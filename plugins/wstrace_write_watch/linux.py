"""Write watch on Linux: userfaultfd WP_ASYNC protects, PAGEMAP_SCAN tells and protects again in one step (both 6.7).

A written page of a transparent huge page splits it for good. MADV_DONTNEED counts as written. Pages that a fork shares
are watched in the parent only.

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
from wstrace_os import pagemap as pm
from wstrace_os import procfs
from wstrace_os.foreign import declare
from wstrace_write_watch.agent_linux import Agent, connect
from wstrace_write_watch.soft_dirty import SoftDirtyWatcher
from wstrace_write_watch.userfaultfd import Userfaultfd

Runs = tuple[NDArray[Any], NDArray[Any]]
_USER_END = 1 << 47
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
        self._ranges: list[tuple[int, int, bool]] = []  # start, end, shared
        self._everything = False
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
        except OSError as error:
            raise _refused(start, end, error) from None
        self._uffd.protect(start, end)
        self._ranges.append((start, end, False))

    def add_writable(self) -> int:
        """Watches all writable memory not yet watched; gives the bytes added.

        Absent pages of private memory get no marker (that would cost page tables for all that is merely reserved): they
        are seen by being there without protection. Memory that another userfaultfd has is left to it.
        """
        self._check_maker()
        first, self._everything = not self._everything, True
        columns = mappings(self.pid, Dictionary())
        start, end, flags = columns["start"], columns["end"], columns["flags"]
        bare = self._pagemap.scan(pm.PAGE, int(end.max(initial=pm.PAGE)), mask=pm.IS_WPALLOWED,
                                  inverted=pm.IS_WPALLOWED, give=pm.IS_WPALLOWED)  # fmt: skip
        armed = ~_inside(start, bare["start"], bare["end"])
        known = np.array(sorted(self._ranges), "<u8").reshape(-1, 3)
        ours = armed & _inside(start, known[:, 0], known[:, 1])
        wanted = ~armed & ((flags & MAP_WRITE) != 0) & ((flags >> KIND_SHIFT) & 15 != KIND_VDSO)
        for row in np.flatnonzero(wanted).tolist():
            ours[row] = self._take(int(start[row]), int(end[row]), bool(flags[row] & MAP_SHARED))
        kept = zip(start[ours].tolist(), end[ours].tolist(), ((flags & MAP_SHARED) != 0)[ours].tolist(), strict=True)
        self._ranges = list(kept)
        if first:
            self.written()
        return int((end - start)[ours & wanted].sum())

    def remove(self, start: int, end: int) -> None:
        """Ends the watch of these pages."""
        self._ranges = [r for r in self._ranges if r[1] <= start or r[0] >= end]
        try:
            self._uffd.unregister(start, end)
        except OSError as error:
            raise _refused(start, end, error) from None

    def written(self, *, reset: bool = True) -> Runs:
        """Runs of written pages: addresses and numbers of pages."""
        self._check_maker()
        scan = self._scan_everything if self._everything else self._scan_region
        found = [*self._pending, *(scan(start, end, shared, reset) for start, end, shared in self._ranges)]
        if reset:
            self._pending = []
        rows = np.concatenate(found) if found else np.empty(0, pm.REGION)
        rows.sort(order="start")
        first = np.flatnonzero(np.r_[True, rows["start"][1:] > rows["end"][:-1]][: len(rows)])
        ends = np.maximum.reduceat(rows["end"], first) if len(rows) else rows["end"]
        start = rows["start"][first]
        return start, ((ends - start) // np.uint64(pm.PAGE)).astype("<u4")

    def close(self) -> None:
        """Ends all watching."""
        self._uffd.close()
        self._pagemap.close()

    abandon = close

    def _take(self, start: int, end: int, shared: bool) -> bool:
        try:
            self._uffd.register(start, end)
        except OSError:  # another userfaultfd has it, it is gone, or it is no memory that can be watched
            return False
        if shared:  # reading makes its pages present too: absent ones need markers
            rows = self._pagemap.scan(start, end, give=_HOLDS, flags=pm.PM_SCAN_WP_MATCHING)
            self._pending.append(rows[rows["categories"] != 0])
        return True

    def _scan_region(self, start: int, end: int, shared: bool, reset: bool) -> NDArray[Any]:
        flags = pm.PM_SCAN_CHECK_WPASYNC | (pm.PM_SCAN_WP_MATCHING if reset else 0)
        mapped = self.pid != self._maker or _msync(start, end - start, _MS_ASYNC) == 0  # else ENOMEM: it has a hole
        try:
            if mapped:
                return self._pagemap.scan(start, end, mask=pm.IS_WRITTEN, give=pm.IS_WRITTEN, flags=flags)
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
        what = f"the memory at {start:#x}-{end:#x}"
        raise Unavailable(f"{what} was unmapped or mapped anew while it was watched", "make a new watch")

    def _scan_everything(self, start: int, end: int, shared: bool, reset: bool) -> NDArray[Any]:
        """Without markers a page that was only read shows as the zero page, or as the file's own."""
        flags = pm.PM_SCAN_WP_MATCHING if reset else 0
        give = pm.IS_WPALLOWED | pm.IS_PFNZERO | pm.IS_FILE
        rows = self._pagemap.scan(start, end, mask=pm.IS_WRITTEN, any_of=_HOLDS, give=give, flags=flags)
        read_only = pm.IS_PFNZERO | (0 if shared else pm.IS_FILE)
        kept: NDArray[Any] = rows[(rows["categories"] & (pm.IS_WPALLOWED | read_only)) == pm.IS_WPALLOWED]
        return kept

    def _prove(self) -> None:
        """Writes the second of three fresh pages and expects to see it alone: what is absent can look like silence."""
        memory = allocate(3 * pm.PAGE)
        start = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
        why = "write watch did not see a write of its own"
        try:
            self.add(start, start + 3 * pm.PAGE)
            memory[pm.PAGE] = 1
            seen = [(runs.tolist(), pages.tolist()) for runs, pages in (self.written(), self.written())]
            self.remove(start, start + 3 * pm.PAGE)
            if seen == [([start + pm.PAGE], [1]), ([], [])]:
                return
        except OSError as error:
            why = f"write watch does not work here: {error.strerror}"
        except Unavailable as refused:
            why = refused.why
        self.close()
        raise Unavailable(why, "Linux 6.7 or newer")

    def _check_maker(self) -> None:
        if os.getpid() != self._maker:
            raise Unavailable("a write watch is not inherited over fork", "make a new one in the child")


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
        return Unavailable(f"{what}: not all of it is mapped memory that can be written")
    return Unavailable(f"{what}: {error.strerror}", "it must be memory that this process may write")
