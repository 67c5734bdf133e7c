"""userfaultfd on Linux: asynchronous write protection (WP_ASYNC, 6.7) for write watch, and a page that a read waits at.

UFFD_USER_MODE_ONLY needs no privilege, and writes that the kernel makes (readv) are seen all the same: an asynchronous
protection fault is never handed to user space. To make the kernel itself wait needs CAP_SYS_PTRACE, the setting
vm.unprivileged_userfaultfd = 1 or access to /dev/userfaultfd.

Source: userfaultfd(2), ioctl_userfaultfd(2), include/uapi/linux/userfaultfd.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
from typing import Any

import numpy as np

from wstrace.errors import Unavailable
from wstrace_os.foreign import declare

_select: Any = select  # poll() is not typed where mypy checks for Windows
#: the call's number; 282 where the kernel uses the common table (aarch64, riscv64, loongarch64)
_SYSCALLS = {"x86_64": 323, "ppc64le": 364, "s390x": 355}
_UFFD_USER_MODE_ONLY = 1
_WP_FEATURES = 1 << 15 | 1 << 13  # UFFD_FEATURE_WP_ASYNC, UFFD_FEATURE_WP_UNPOPULATED
MODE_MISSING, MODE_WP = 1, 2  # UFFDIO_REGISTER_MODE_*
_API = np.dtype([("api", "<u8"), ("features", "<u8"), ("ioctls", "<u8")])
_REGISTER = np.dtype([("start", "<u8"), ("len", "<u8"), ("mode", "<u8"), ("ioctls", "<u8")])
_RANGE = np.dtype([("start", "<u8"), ("len", "<u8")])
_WRITEPROTECT = np.dtype([("start", "<u8"), ("len", "<u8"), ("mode", "<u8")])
_ZEROPAGE = np.dtype([("start", "<u8"), ("len", "<u8"), ("mode", "<u8"), ("zeroed", "<i8")])
assert (_API.itemsize, _REGISTER.itemsize, _RANGE.itemsize, _WRITEPROTECT.itemsize) == (24, 32, 16, 24)
assert _ZEROPAGE.itemsize == 32
_UFFDIO_API, _UFFDIO_REGISTER, _UFFDIO_UNREGISTER, _UFFDIO_WRITEPROTECT, _UFFDIO_ZEROPAGE = (
    0xC018AA3F, 0xC020AA00, 0x8010AA01, 0xC018AA06, 0xC020AA04,
)  # fmt: skip
_USERFAULTFD_IOC_NEW = 0xAA00

_ioctl = declare(None, "ioctl", ctypes.c_int, ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
_syscall = declare(None, "syscall", ctypes.c_int64, ctypes.c_int64, ctypes.c_int)


class Userfaultfd:
    """A userfaultfd of the calling process, or one that another process made and handed over.

    Args:
        fd: the one handed over.
        mode: MODE_WP = for write protection; MODE_MISSING = absent pages wait, for the kernel too.

    Raises:
        Unavailable: the kernel or the sandbox has none, or none with WP_ASYNC, or none that the kernel waits at.
    """

    def __init__(self, fd: int | None = None, *, mode: int = MODE_WP) -> None:
        self._mode = mode
        if fd is not None:
            self.fd = fd
            return
        protects = mode == MODE_WP
        self.fd = _open(_UFFD_USER_MODE_ONLY if protects else 0)
        api = np.array([(0xAA, _WP_FEATURES if protects else 0, 0)], _API)
        if _ioctl(self.fd, _UFFDIO_API, api.ctypes.data) < 0:
            self.close()
            why = "this kernel's userfaultfd has no asynchronous write protection"
            raise Unavailable(why, "Linux 6.7 or newer")

    def register(self, start: int, end: int) -> None:
        """Takes pages under this userfaultfd; again is no error.

        Raises:
            OSError: EBUSY = another userfaultfd has them, EINVAL or ENOMEM = not mapped, EPERM = may not be written.
        """
        self._call(_UFFDIO_REGISTER, np.array([(start, end - start, self._mode, 0)], _REGISTER))

    def protect(self, start: int, end: int) -> None:
        """All pages of the range count as not written from now on. Raises OSError."""
        self._call(_UFFDIO_WRITEPROTECT, np.array([(start, end - start, 1)], _WRITEPROTECT))

    def waited_at(self, timeout: float) -> bool:
        """Whether someone has come to wait at an absent page, after at most so many seconds."""
        poll = _select.poll()
        poll.register(self.fd, _select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def fill(self, start: int, end: int) -> None:
        """Gives zero pages to absent ones, and lets go on whoever waits there. Raises OSError."""
        self._call(_UFFDIO_ZEROPAGE, np.array([(start, end - start, 0, 0)], _ZEROPAGE))

    def unregister(self, start: int, end: int) -> None:
        """Gives pages up. Raises OSError."""
        self._call(_UFFDIO_UNREGISTER, np.array([(start, end - start)], _RANGE))

    def close(self) -> None:
        """Closes it, which ends all watching once no process holds a copy; again is no error."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _call(self, request: int, argument: Any) -> None:
        while _ioctl(self.fd, request, argument.ctypes.data) < 0:
            number = ctypes.get_errno()
            if number != errno.EAGAIN:  # the mappings change at this moment, or a fork is under way
                raise OSError(number, os.strerror(number))


def _open(flag: int) -> int:
    flags = os.O_CLOEXEC | os.O_NONBLOCK | flag  # type: ignore[attr-defined, unused-ignore]
    machine = os.uname().machine  # type: ignore[attr-defined, unused-ignore]
    fd = int(_syscall(_SYSCALLS.get(machine, 282), flags))
    refused = ctypes.get_errno()
    if fd >= 0:
        return fd
    try:  # containers that filter the call may still hand the device in
        device = os.open("/dev/userfaultfd", os.O_RDWR | os.O_CLOEXEC)  # type: ignore[attr-defined, unused-ignore]
    except OSError:
        remedy = "in a container: pass --device /dev/userfaultfd"
        if refused == errno.ENOSYS:
            remedy = "Linux 6.7 or newer"
        elif not flag:
            remedy = "run wstrace as root, or: sysctl -w vm.unprivileged_userfaultfd=1"
        raise Unavailable(f"userfaultfd is refused: {os.strerror(refused)}", remedy) from None
    try:
        fd = int(_ioctl(device, _USERFAULTFD_IOC_NEW, flags))
        if fd < 0:
            raise Unavailable(f"/dev/userfaultfd is refused: {os.strerror(ctypes.get_errno())}")
        return fd
    finally:
        os.close(device)
