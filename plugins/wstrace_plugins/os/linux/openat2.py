"""Opens files with a bound on how their names are resolved: openat2(2) (Linux 5.6), or step by step.

Source: openat2(2); include/uapi/linux/openat2.h: struct open_how.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from wstrace_plugins.os.linux import libc

_OPENAT2 = 437  # The number is the same on every architecture.
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_syscall = libc.syscall


def open_below(top: int, path: str, flags: int) -> int:
    """Opens a path with the folder of a descriptor as its root; returns the descriptor.

    Before Linux 5.6, and where a sandbox refuses openat2(), a path that contains a symbolic link is refused.

    Raises:
        OSError: it cannot be opened.
        ValueError: the path has a null byte.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    resolve = _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS
    how = ctypes.create_string_buffer(struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, resolve))
    text = ctypes.create_string_buffer(name)
    fd = _syscall(_OPENAT2, top, ctypes.addressof(text), ctypes.addressof(how), 24)
    if fd >= 0:
        return fd
    refused = libc.last_error()
    if refused.errno in (errno.ENOSYS, errno.EPERM):
        return _step_by_step(top, name, flags)
    raise OSError(refused.errno, refused.strerror, path)


def reopened(fd: int) -> int:
    """Opens for reading what an O_PATH descriptor, which is closed, names, so that it can be looked at before.

    Raises:
        OSError: it cannot be opened.
    """
    try:
        return os.open(f"/proc/self/fd/{fd}", _READ)
    finally:
        os.close(fd)


def _step_by_step(top: int, path: bytes, flags: int) -> int:
    *folders, last = [part for part in path.split(b"/") if part] or [b"."]
    if b".." in (*folders, last):
        raise OSError(errno.EXDEV, "leads out of the root", os.fsdecode(path))
    at = os.dup(top)
    try:
        for folder in folders:
            step = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = step
        return os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
