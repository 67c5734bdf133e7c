"""/proc/PID/pagemap on Linux: one entry per page, and PAGEMAP_SCAN (6.7): runs of pages, and write protection.

Source: Linux Documentation/admin-guide/mm/pagemap.rst; include/uapi/linux/fs.h (struct pm_scan_arg, page_region);
fs/proc/task_mmu.c.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import itertools
import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.linux import libc, procfs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

PAGE = mmap.PAGESIZE

#: Bits of the top byte of an entry: 63 present, 62 swapped, 61 file page or shared memory, 58 guard (Linux 6.15),
#: 57 write-protected by a userfaultfd, 56 exclusively mapped.
PRESENT_BIT, SWAPPED_BIT, FILE_BIT, GUARD_BIT, PROTECTED_BIT, EXCLUSIVE_BIT = 0x80, 0x40, 0x20, 0x04, 0x02, 0x01
#: The frame number of a present page, or the swap or marker data of another one; 0 without privilege.
PFN_MASK = (1 << 55) - 1
#: An entry that is not present looks swapped. With this type it is not: it is a marker that the kernel left, and
#: these bits say which one (include/linux/swapops.h: SWP_PTE_MARKER, PTE_MARKER_GUARD).
SWAP_TYPE_BITS, MARKER_TYPE, MARKER_GUARD = 5, 31, 4

#: Page categories of PAGEMAP_SCAN.
IS_WPALLOWED, IS_WRITTEN, IS_FILE, IS_PRESENT, IS_SWAPPED, IS_PFNZERO, IS_HUGE = (1 << bit for bit in range(7))
PM_SCAN_WP_MATCHING, PM_SCAN_CHECK_WPASYNC = 1, 2

REGION = np.dtype([("start", "<u8"), ("end", "<u8"), ("categories", "<u8")])
assert REGION.itemsize == 24  # struct page_region
_FIELDS = ("size", "flags", "start", "end", "walk_end", "vec", "vec_len", "max_pages",
           "category_inverted", "category_mask", "category_anyof_mask", "return_mask")  # fmt: skip
SCAN_ARG = np.dtype([(name, "<u8") for name in _FIELDS])
assert SCAN_ARG.itemsize == 96  # struct pm_scan_arg
PAGEMAP_SCAN = 0xC0606610  # _IOWR('f', 16, struct pm_scan_arg)
VEC_LEN = 16_384

_pread: Any = getattr(os, "pread", None)  # Windows has none.
_ioctl = libc.ioctl


class Pagemap:
    """An open pagemap. It belongs to the address space that it was opened on: after an exec or exit it reads empty.

    pid: the process, 0 = the calling process. Raises TargetExited: there is no such process; Unavailable: it belongs to
    another user.
    """

    def __init__(self, pid: int = 0) -> None:
        self.fd = _open(pid)
        self._vec = np.empty(VEC_LEN, REGION)
        self._arg = np.zeros(1, SCAN_ARG)
        self._at = self._vec.ctypes.data, self._arg.ctypes.data  # The addresses are looked up once, as that costs 5 us.

    def scan(
        self, start: int, end: int, *, mask: int = 0, any_of: int = 0, inverted: int = 0, give: int = 0, flags: int = 0
    ) -> NDArray[Any]:
        """Runs of pages whose categories match, as REGION rows sorted by address.

        Args:
            start, end: page-aligned addresses.
            mask: categories that must all hold; any_of: one must hold; inverted: categories that are negated first.
            give: categories to report in the rows; a run ends where one of them changes.
            flags: PM_SCAN_WP_MATCHING write-protects the matching pages in the same step.

        An address space that is gone has no pages: up to Linux 6.17 the kernel returns none, from 6.18 on it answers
        ESRCH. `gone` distinguishes this case from one where nothing matches.

        Raises:
            PermissionError: PM_SCAN_CHECK_WPASYNC was set, and part of the range is not under a userfaultfd.
            Unavailable: any other refusal; ENOTTY or EINVAL come from a kernel without this scan (before 6.7).
        """
        arg, parts, (vec_at, arg_at) = self._arg, [], self._at
        while start < end:
            arg[0] = (SCAN_ARG.itemsize, flags, start, end, 0, vec_at, VEC_LEN, 0,
                      inverted, mask, any_of, give)  # fmt: skip
            found = _ioctl(self.fd, PAGEMAP_SCAN, arg_at)
            if found < 0:
                number = ctypes.get_errno()
                if number == errno.EINTR:
                    continue
                if number == errno.ESRCH:
                    break
                raise _scan_refused(number, flags)
            # copy() of such rows goes field by field and takes ten times as long.
            parts.append(np.frombuffer(self._vec[:found].tobytes(), REGION))
            if found < VEC_LEN:  # The scan is done: only a full vector means that there is more.
                break
            # walk_end is stale when a scan completes with more than 512 regions.
            start = max(int(arg[0]["walk_end"]), int(self._vec[found - 1]["end"]))
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, REGION)])

    def entries(self, start: ArrayLike, pages: ArrayLike) -> NDArray[Any]:
        """The entries (u64) of the pages of several ranges, concatenated; fewer when the address space is gone.

        start: addresses where the ranges begin, shape (n,); pages: the number of pages of each. Raises Unavailable: the
        kernel refuses to read them.
        """
        # map() runs over the call itself: a Python frame would cost a fifth of the time to read a single page.
        sizes, offsets = np.multiply(pages, 8), np.floor_divide(start, PAGE) * 8
        try:
            raw = b"".join(map(_pread, itertools.repeat(self.fd), sizes.tolist(), offsets.tolist()))
        except ProcessLookupError:  # This too means that the address space is gone; Linux 6.18 still reads as empty.
            raw = b""
        except OSError as error:
            raise Unavailable(f"pagemap cannot be read: {error.strerror}") from None
        return np.frombuffer(raw, "<u8")

    @property
    def gone(self) -> bool:
        """True when the address space is gone: the process ended or executed another program."""
        return not len(self.entries([PAGE], [1]))

    def close(self) -> None:
        """Closes the file; closing again is no error."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@functools.cache
def has_scan() -> bool:
    """True when the kernel has PAGEMAP_SCAN (6.7)."""
    try:
        pagemap = Pagemap()
    except Unavailable:
        return False
    try:
        pagemap.scan(PAGE, 2 * PAGE, mask=IS_PRESENT, give=IS_PRESENT)
    except Unavailable:
        return False
    finally:
        pagemap.close()
    return True


def _scan_refused(number: int, flags: int) -> OSError | Unavailable:
    """The error for a scan that the kernel refuses."""
    why = f"PAGEMAP_SCAN: {os.strerror(number)}"
    if number == errno.EPERM and flags & PM_SCAN_CHECK_WPASYNC:
        return PermissionError(number, why)
    return Unavailable(why, "Linux 6.7 or newer" if number in (errno.ENOTTY, errno.EINVAL, errno.ENOSYS) else "")


def _open(pid: int) -> int:
    """A descriptor of the pagemap of a process, 0 = ours. Raises TargetExited, Unavailable."""
    path = f"/proc/{pid or 'self'}/pagemap"
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            raise TargetExited(f"there is no process {pid}") from None
        if (
            pid and not procfs.stat(pid).mapped_bytes
        ):  # A process that has released its memory at exit belongs to root: observed with our own processes.
            raise TargetExited(f"process {pid} ends just now: it has no memory any more") from None
        raise Unavailable(f"cannot open {path}: {error.strerror}", procfs.right_to_read()) from None
