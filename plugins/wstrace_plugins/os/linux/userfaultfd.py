"""userfaultfd on Linux for write watch: asynchronous write protection (WP_ASYNC, 6.7), resolved in the kernel.

UFFD_USER_MODE_ONLY needs no privilege, and writes by the kernel (readv) are seen nevertheless, because an asynchronous
protection fault is never handed to user space. Privilege (CAP_SYS_PTRACE, vm.unprivileged_userfaultfd = 1 or access to
/dev/userfaultfd) is needed only for making the kernel itself wait at a page.

Source: userfaultfd(2), ioctl_userfaultfd(2), include/uapi/linux/userfaultfd.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from typing import Any

import numpy as np

from wstrace.errors import Unavailable
from wstrace_plugins.os.linux import libc

_UFFD_USER_MODE_ONLY = 1
_FEATURES = 1 << 15 | 1 << 13  # UFFD_FEATURE_WP_ASYNC, UFFD_FEATURE_WP_UNPOPULATED
_MODE_WP = 2  # UFFDIO_REGISTER_MODE_WP
_API = np.dtype([("api", "<u8"), ("features", "<u8"), ("ioctls", "<u8")])
_REGISTER = np.dtype([("start", "<u8"), ("len", "<u8"), ("mode", "<u8"), ("ioctls", "<u8")])
_WRITEPROTECT = np.dtype([("start", "<u8"), ("len", "<u8"), ("mode", "<u8")])
assert (_API.itemsize, _REGISTER.itemsize, _WRITEPROTECT.itemsize) == (24, 32, 24)
_UFFDIO_API, _UFFDIO_REGISTER, _UFFDIO_WRITEPROTECT = 0xC018AA3F, 0xC020AA00, 0xC018AA06
_USERFAULTFD_IOC_NEW = 0xAA00
#: How long a call is repeated while the mappings change: a fork of 100 GiB takes a second.
_PATIENCE_SECONDS = 5.0

_ioctl, _syscall = libc.ioctl, libc.syscall


class Userfaultfd:
    """A userfaultfd of the calling process. Raises Unavailable: there is none, or none with WP_ASYNC."""

    def __init__(self) -> None:
        self.fd = create(_UFFD_USER_MODE_ONLY)
        api = np.array([(0xAA, _FEATURES, 0)], _API)
        if _ioctl(self.fd, _UFFDIO_API, api.ctypes.data) < 0:
            self.close()
            why = "this kernel's userfaultfd has no asynchronous write protection"
            raise Unavailable(why, "Linux 6.7 or newer")

    def register(self, start: int, end: int) -> None:
        """Registers pages with this userfaultfd; registering again is no error.

        Raises OSError: EBUSY = another userfaultfd has them, EINVAL or ENOMEM = not mapped, EPERM = may not be written.
        """
        self._call(_UFFDIO_REGISTER, np.array([(start, end - start, _MODE_WP, 0)], _REGISTER))

    def protect(self, start: int, end: int) -> None:
        """Write-protects the range: all its pages count as not written from now on. Raises OSError."""
        self._call(_UFFDIO_WRITEPROTECT, np.array([(start, end - start, 1)], _WRITEPROTECT))

    def close(self) -> None:
        """Closes the descriptor; the watch ends once no process has a copy. Closing again is no error."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _call(self, request: int, argument: Any) -> None:
        until = time.monotonic() + _PATIENCE_SECONDS
        while _ioctl(self.fd, request, argument.ctypes.data) < 0:
            # EAGAIN: the mappings are changing, or a fork is under way.
            if ctypes.get_errno() != errno.EAGAIN or time.monotonic() > until:
                raise libc.last_error()  # In a variable, the exception would keep the caller's memory alive in a cycle.


def system_call() -> int:
    """The number of the system call on this machine."""
    return libc.number_of(282, x86_64=323, ppc64le=364, s390x=355)


def create(flag: int = 0) -> int:
    """Creates a userfaultfd of the calling process; with flag 0, one at which the kernel itself waits too.

    Raises Unavailable: the system refuses; the error says what to do.
    """
    flags = os.O_CLOEXEC | os.O_NONBLOCK | flag
    fd = _syscall(system_call(), flags)
    refused = libc.last_error()
    if fd >= 0:
        return fd
    try:  # Containers that filter the system call may still provide the device.
        device = os.open("/dev/userfaultfd", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        remedy = "in a container: pass --device /dev/userfaultfd"
        if refused.errno in (errno.ENOSYS, errno.EINVAL):  # EINVAL: it does not know the flag, before Linux 5.11
            remedy = "Linux 6.7 or newer"
        elif not flag:
            remedy = "run wstrace as root, or: sysctl -w vm.unprivileged_userfaultfd=1"
        raise Unavailable(f"userfaultfd is refused: {refused.strerror}", remedy) from None
    try:
        fd = int(_ioctl(device, _USERFAULTFD_IOC_NEW, flags))
        if fd < 0:
            raise Unavailable(f"/dev/userfaultfd is refused: {libc.last_error().strerror}")
        return fd
    finally:
        os.close(device)
