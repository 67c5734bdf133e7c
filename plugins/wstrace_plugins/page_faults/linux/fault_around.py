"""fault_around_bytes: how much of a file a read fault maps with the touched page, where it is in the page cache.

Blame gives a page without a fault of its own to one whose window holds it. The kernel's default of 64 KiB is a setting,
which debugfs tells root where it is mounted (mm/memory.c fault_around_bytes_get()). Elsewhere it is tried: one page of
a file in memory is read, and the pagemap of this process tells which pages are mapped then.
"""

from __future__ import annotations

import contextlib
import mmap
import os

import numpy as np

from wstrace_plugins.os.linux import procfs

_SETTING = "/sys/kernel/debug/fault_around_bytes"
#: The bytes that are in the page cache when it is tried, which bound what is found: the default first, as it is cheap.
_TRIED = (1 << 17, 1 << 20)
#: The bit of an entry that tells that its page is mapped (Documentation/admin-guide/mm/pagemap.rst).
_PRESENT = np.uint64(63)


def fault_around_bytes() -> int:
    """The most bytes that a read fault maps; 0 = not known."""
    with contextlib.suppress(OSError, ValueError):
        return max(int(procfs.content(_SETTING)), mmap.PAGESIZE)
    with contextlib.suppress(OSError):
        return next((found for n in _TRIED if (found := mapped_of(n)) < n), _TRIED[-1])
    return 0


def mapped_of(n: int) -> int:
    """How much of n bytes, which are aligned to their size as windows are, is mapped when a page amid them is read.

    Raises:
        OSError: there is no such file, or the pagemap may not be read.
    """
    file = os.memfd_create("wstrace-fault-around")
    try:
        os.ftruncate(file, 2 * n)
        with mmap.mmap(file, 2 * n, prot=mmap.PROT_READ) as memory:
            with contextlib.suppress(OSError):  # a kernel without huge pages, of which one would be mapped whole
                memory.madvise(mmap.MADV_NOHUGEPAGE)
            whole = np.frombuffer(memory, np.uint8)
            address = int(whole.__array_interface__["data"][0])
            begin = -address % n
            os.pwrite(file, bytes(n), begin)
            assert not whole[begin + n // 2]
            del whole
            with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
                entries = os.pread(pagemap.fileno(), 2 * n // mmap.PAGESIZE * 8, address // mmap.PAGESIZE * 8)
        return int((np.frombuffer(entries, "<u8") >> _PRESENT).sum()) * mmap.PAGESIZE
    finally:
        os.close(file)
