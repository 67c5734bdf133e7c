"""Write watch on Linux: userfaultfd WP_ASYNC protects, PAGEMAP_SCAN reads and re-protects in one step (both 6.7).

A write to a transparent huge page splits it permanently; a hugetlb page is reported as a whole. MADV_DONTNEED counts as
written. Pages that are shared after a fork are watched in the parent only.

Source: Linux Documentation/admin-guide/mm/pagemap.rst and userfaultfd.rst; both were added for what GetWriteWatch does.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

import numpy as np

from wstrace.errors import Unavailable
from wstrace_plugins.os.intervals import Ranges, union
from wstrace_plugins.os.linux import pagemap as pm
from wstrace_plugins.os.linux.userfaultfd import Userfaultfd
from wstrace_plugins.write_watch.linux.all_memory import AllMemory
from wstrace_plugins.write_watch.linux.all_memory import mappings as mappings

_NONE = np.empty(0, "<u8")


def allocate(nbytes: int) -> mmap.mmap:
    """Zeroed private memory, page-aligned."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return mmap.mmap(-1, nbytes, flags=flags)


def open_watcher() -> Watcher:
    """A watcher of all writable memory of the calling process."""
    watcher = Watcher()
    try:
        watcher.add_writable()
    except BaseException:
        watcher.close()
        raise
    return watcher


class Watcher:
    """A watch of the calling process, which covers no memory at first. Raises Unavailable where it does not work."""

    page_size = pm.PAGE

    def __init__(self) -> None:
        self._maker = os.getpid()
        self._region = 0, 0
        self._all: AllMemory | None = None
        self._uffd, self._pagemap = Userfaultfd(), pm.Pagemap()
        self._prove()

    def add(self, start: int, end: int) -> None:
        """Starts to watch these whole pages, with nothing written yet; called once.

        Raises Unavailable: they are watched already, are not mapped, or cannot be watched on this system.
        """
        self._check_maker()
        try:
            self._uffd.register(start, end)
            self._uffd.protect(start, end)
        except OSError as error:
            raise _refused(start, end, error) from None
        self._region = start, end

    def add_writable(self) -> int:
        """Watches all writable memory, present and future; returns the number of bytes watched now."""
        self._check_maker()
        self._all = AllMemory(self._uffd, self._pagemap)
        return self._all.nbytes

    def ranges(self, *, reset: bool = True) -> Ranges:
        """Where runs of written pages in everything watched begin and end, u64, sorted, shape (n,) each.

        No write is lost between a read and the reset.
        reset: the pages count as not written from now on. Raises Unavailable: this is a forked child, or the memory was
        mapped anew.
        """
        self._check_maker()
        if self._all is not None:
            return _joined(self._all.take())
        flags = pm.PM_SCAN_CHECK_WPASYNC | (pm.PM_SCAN_WP_MATCHING if reset else 0)
        try:
            rows = self._pagemap.scan(*self._region, mask=pm.IS_WRITTEN, give=pm.IS_WRITTEN, flags=flags)
        except PermissionError:
            why = "the memory at {:#x}-{:#x} was mapped anew while it was watched".format(*self._region)
            raise Unavailable(why, "make a new watch") from None
        found = rows["start"], rows["end"]
        return found if len(rows) < pm.VEC_LEN else _joined([found])

    def reset(self) -> None:
        """Marks everything watched as not written; unlike ranges() it writes hardly any memory itself."""
        self._check_maker()
        if self._all is not None:
            self._all.reset()

    def close(self) -> None:
        """Ends all watching."""
        self._uffd.close()
        self._pagemap.close()

    after_fork_in_child = close

    def _prove(self) -> None:
        """Writes to the second of three fresh pages and expects only that one: a missing feature shows no write."""
        memory = allocate(3 * pm.PAGE)
        start = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
        why, remedy = "write watch did not see a write of its own", "Linux 6.7 or newer"
        try:
            self.add(start, start + 3 * pm.PAGE)
            memory[pm.PAGE] = 1
            seen = [(low.tolist(), high.tolist()) for low, high in (self.ranges(), self.ranges())]
            if seen == [([start + pm.PAGE], [start + 2 * pm.PAGE]), ([], [])]:
                return
        except Unavailable as refused:
            why, remedy = f"write watch does not work here: {refused.why}", refused.remedy
        self.close()
        raise Unavailable(why, remedy)

    def _check_maker(self) -> None:
        if os.getpid() != self._maker:
            raise Unavailable("a write watch is not inherited over fork", "make a new one in the child")


def _joined(found: list[Ranges]) -> Ranges:
    """The ranges of several reads together."""
    start, end = (np.concatenate(column) for column in zip((_NONE, _NONE), *found, strict=True))
    return union(start, end)


def _refused(start: int, end: int, error: OSError) -> Unavailable:
    """The error for memory that cannot be watched."""
    what = f"cannot watch the memory at {start:#x}-{end:#x}"
    if error.errno == errno.EBUSY:
        return Unavailable(f"{what}: it is watched already", "close the other watch first")
    if error.errno in (errno.EINVAL, errno.ENOMEM):
        return Unavailable(f"{what}: not all of it is mapped memory that can be written, or it cuts a page of hugetlb")
    return Unavailable(f"{what}: {error.strerror}", "it must be memory that this process may write")
