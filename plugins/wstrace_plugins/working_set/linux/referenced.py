"""The referenced bits of a process's pages on Linux: clear_refs takes them away, smaps counts those set again.

The processor sets the bit of a page when it translates an address in it, so a use costs the process nothing. What smaps
counts is coarser. A huge page has one bit for all of it. A page that a fault maps beside the touched one (fault-around)
begins with its bit set. And a page of a file counts for all that map it, also when another process has used it, or when
one that had used it ends. Clearing does not flush the processor's cached translations.

Source: Linux Documentation/filesystems/proc.rst, "clear_refs"; fs/proc/task_mmu.c clear_refs_write(), smaps_account().
"""

from __future__ import annotations

import functools
import mmap
import os
from pathlib import Path

import numpy as np

from wstrace.errors import TargetExited, Unavailable
from wstrace.schema import KIND_SHIFT
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.working_set.backend import Uses
from wstrace_plugins.working_set.linux import smaps


class ReferencedBits:
    """The referenced bits of one process; see backend.ReferencedBits."""

    def __init__(self, pid: int) -> None:
        seen = procfs.stat_with_memory(pid)
        self.pid, self.name, self._image = pid, seen.name, seen.image
        if not _works():
            raise Unavailable("this kernel does not clear referenced bits (/proc/PID/clear_refs)", "use --by-emptying")

    def clear(self) -> None:
        """Takes all its referenced bits away; the kernel holds the process's memory lock meanwhile."""
        _clear(self.pid)

    def read(self) -> Uses:
        """What has been referenced since, and what is resident."""
        maps, text = procfs.read_maps(self.pid), smaps.read(self.pid)
        if procfs.stat_with_memory(self.pid).image != self._image:
            raise TargetExited(f"process {self.pid} ({self.name}) executed another program while it was watched")
        sums = [smaps.sizes(text, field) for field in (b"Referenced:", b"Rss:")]
        used, resident = (np.array([found.get(start, 0) for start in maps.columns["start"].tolist()], np.int64)
                          for found in sums)  # fmt: skip
        kind = (maps.columns["flags"] >> KIND_SHIFT) & 15
        return Uses([maps.files[file] for file in maps.columns["file"].tolist()], kind, used, resident)


def _clear(pid: int) -> None:
    try:
        Path(f"/proc/{procfs.memory_task(pid)}/clear_refs").write_text("1")
    except (FileNotFoundError, ProcessLookupError):
        raise TargetExited(f"there is no process {pid}") from None
    except OSError as error:
        why = f"cannot clear the referenced bits of process {pid} (/proc/{pid}/clear_refs): {error.strerror}"
        raise Unavailable(why, "run wstrace as that process's user or as root") from None


@functools.cache
def _works() -> bool:
    """Whether a page of our own that was written just now loses its bit; containers' kernels may ignore the file."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[0] = 1
    at = np.frombuffer(memory, "u1").ctypes.data

    def referenced() -> int:
        sizes = smaps.sizes(smaps.read(os.getpid()), b"Referenced:")
        return sizes[max(start for start in sizes if start <= at)]

    before = referenced()
    try:
        _clear(os.getpid())
    except Unavailable:
        return False
    return referenced() < before
