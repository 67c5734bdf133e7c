"""Write watch of another process by soft-dirty bits, where the kernel really has them: pagemap bit 55, clear_refs.

Reading and clearing are two steps: unlike with userfaultfd, a write in between is lost. Kernels built without
CONFIG_MEM_SOFT_DIRTY accept the clearing silently and never report a page, so a fresh page proves the bit first.

Source: Linux Documentation/admin-guide/mm/soft-dirty.rst.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import TargetExited, Unavailable
from wstrace.schema import KIND_SHIFT, KIND_VDSO, MAP_WRITE
from wstrace_plugins.os.linux import pagemap as pm
from wstrace_plugins.os.linux import procfs

_CHUNK = 1 << 19


class SoftDirtyWatcher:
    """A watch of all writable memory of another process; see backend.Watch."""

    page_size = pm.PAGE

    def __init__(self, pid: int) -> None:
        if not has_soft_dirty():
            raise Unavailable("this kernel has no soft-dirty bits")
        self.pid = pid
        self._pagemap = pm.Pagemap(pid)

    def add(self, start: int, end: int) -> None:
        """Not possible by this method, which watches the process as a whole."""
        raise Unavailable("soft-dirty watches a process as a whole", "call wstrace.agent() in the process")

    def add_writable(self) -> int:
        """Starts the watch again, with nothing written yet."""
        self._clear()
        return 0

    def remove(self, start: int, end: int) -> None:
        """Does nothing: no state is held per range."""

    def written(self, *, reset: bool = True) -> tuple[NDArray[Any], NDArray[Any]]:
        """Runs of written pages: addresses and page counts."""
        columns = procfs.read_maps(self.pid).columns
        wanted = ((columns["flags"] & MAP_WRITE) != 0) & ((columns["flags"] >> KIND_SHIFT) & 15 != KIND_VDSO)
        found = [
            dirty_runs(self._pagemap.entries([start], [min((end - start) // pm.PAGE, _CHUNK)]), start)
            for low, end in zip(columns["start"][wanted].tolist(), columns["end"][wanted].tolist(), strict=True)
            for start in range(low, end, _CHUNK * pm.PAGE)
        ]
        if self._pagemap.gone:  # asked after reading: of an address space that has ended, nothing reads as written
            raise TargetExited(f"process {self.pid} ended or executed another program while it was watched")
        if reset:
            self._clear()
        if not found:
            return np.empty(0, "<u8"), np.empty(0, "<u4")
        return np.concatenate([start for start, _ in found]), np.concatenate([pages for _, pages in found])

    def close(self) -> None:
        """Closes its file."""
        self._pagemap.close()

    after_fork_in_child = close

    def _clear(self) -> None:
        try:
            Path(f"/proc/{self.pid}/clear_refs").write_text("4")
        except (FileNotFoundError, ProcessLookupError):
            raise TargetExited(f"there is no process {self.pid}") from None
        except OSError as error:
            raise Unavailable(f"cannot write /proc/{self.pid}/clear_refs: {error.strerror}") from None


def has_soft_dirty() -> bool:
    """True when a page just written shows the bit; every kernel that has the bit sets it on new memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, pm.PAGE, flags=flags)
    memory[0] = 1
    pagemap = pm.Pagemap()
    try:
        entries = pagemap.entries([np.frombuffer(memory, "u1").ctypes.data], [1])
    finally:
        pagemap.close()
    return bool(entries[0] & np.uint64(pm.SOFT_DIRTY))


def dirty_runs(entries: NDArray[Any], start: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Runs of pages (address, number) whose pagemap entry is present or swapped, and soft-dirty.

    Args:
        entries: u64, shape (n,), of the pages from address start on.
    """
    held = np.uint64(1 << 63 | 1 << 62)
    dirty = ((entries & held) != 0) & ((entries & np.uint64(pm.SOFT_DIRTY)) != 0)
    edges = np.flatnonzero(np.diff(dirty.astype("i1"), prepend=0, append=0))
    first, last = edges[::2], edges[1::2]
    return np.uint64(start) + first.astype("<u8") * np.uint64(pm.PAGE), (last - first).astype("<u4")
