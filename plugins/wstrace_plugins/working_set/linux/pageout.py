"""Takes pages out of memory on Linux by process_madvise(MADV_PAGEOUT), which never touches data; why a page stayed.

MADV_PAGEOUT reports full success also for pages that it left in memory, so only a rescan shows the result.
MADV_DONTNEED is not used: on a private copy (RELRO, anonymous memory) it discards data and crashes the process.

Source: process_madvise(2), madvise(2); mm/madvise.c can_madv_lru_vma(), madvise_cold_or_pageout_pte_range().
"""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Columns
from wstrace.errors import TargetExited, Unavailable
from wstrace.schema import KIND_SHIFT, KIND_VDSO, NOT_RESIDENT, PAGE_FILE, PAGE_LOCKED, PAGE_SHARED
from wstrace_plugins.os.linux import libc
from wstrace_plugins.os.linux.pagemap import PAGE

_SYS_PROCESS_MADVISE = 440  # the same on every architecture
_MADV_PAGEOUT = 21
_IOV_MAX = 1024
IOVEC = np.dtype([("base", "<u8"), ("len", "<u8")])
assert IOVEC.itemsize == 16  # struct iovec, 64-bit

_syscall = libc.syscall

REASONS = (
    "kept by the kernel: in use, being written back, or a file that its user may not write",
    "anonymous memory: there is no swap space, or the kernel did not swap it out",
    "mapped by other processes too",
    "locked in memory (mlock)",
    "the kernel's own page",
)


def page_out(pid: int, runs: Columns) -> None:
    """Asks the kernel to reclaim every page of these runs. Raises TargetExited, Unavailable."""
    there = (runs["flags"] & NOT_RESIDENT) == 0
    vectors = np.empty(int(there.sum()), IOVEC)
    vectors["base"], vectors["len"] = runs["start"][there], runs["pages"][there].astype("<u8") * np.uint64(PAGE)
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise TargetExited(f"there is no process {pid}") from None
    except OSError as error:
        remedy = "Linux 5.10 or newer" if error.errno == errno.ENOSYS else ""
        raise Unavailable(f"pidfd_open is refused on process {pid}: {error.strerror}", remedy) from None
    try:
        at = 0
        while at < len(vectors):
            some = vectors[at : at + _IOV_MAX]
            done = _syscall(_SYS_PROCESS_MADVISE, pidfd, some.ctypes.data, len(some), _MADV_PAGEOUT, 0)
            if done < 0:
                _check(pid, libc.last_error())
                at += 1  # a mapping that cannot be paged out (locked, device memory): the rescan will show it
            else:  # the call stops at the first range that it refuses; it fails only when that range is the first one
                at += max(int(np.searchsorted(np.cumsum(some["len"]), done, "right")), 1)
    finally:
        os.close(pidfd)


def _check(pid: int, refused: OSError) -> None:
    """Raises the error for a refusal after which trying on makes no sense."""
    number = refused.errno
    if number == errno.ESRCH:
        raise TargetExited(f"process {pid} ended meanwhile")
    if number == errno.ENOSYS:
        raise Unavailable("this kernel has no process_madvise", "Linux 5.10 or newer")
    if number == errno.EPERM:
        remedy = "run wstrace as root, or with CAP_SYS_NICE and CAP_SYS_PTRACE"
        raise Unavailable(f"process_madvise is refused on process {pid}: {refused.strerror}", remedy)


def why_stayed(mappings: Columns, runs: Columns) -> tuple[NDArray[Any], tuple[str, ...]]:
    """A code into REASONS for each run that is still there. mappings, runs: as Space gives them."""
    flags = runs["flags"]
    kind = (mappings["flags"][runs["row"]] >> KIND_SHIFT) & 15
    choices = [(flags & PAGE_LOCKED) != 0, kind == KIND_VDSO, (flags & PAGE_SHARED) != 0, (flags & PAGE_FILE) == 0]
    return np.select(choices, [3, 4, 2, 1], 0).astype("u1"), REASONS
