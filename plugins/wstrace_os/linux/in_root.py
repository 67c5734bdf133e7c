"""Opens files by the names that a process with another root uses: openat2(2), RESOLVE_IN_ROOT (5.6), or stepwise.

Opening `/proc/PID/root/x` by its path would follow an absolute symbolic link to *our* x. That is another file, and
whoever made the link would have a way out of the container.

Source: openat2(2); include/uapi/linux/openat2.h: struct open_how.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Any

from wstrace_os.linux import libc, procfs

_OPENAT2 = 437  # The number is the same on every architecture.
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_syscall = libc.syscall


def open_in_root(root: str, path: str, flags: int) -> int:
    """Opens the file that a process with this root knows by this absolute path; returns the descriptor.

    Before Linux 5.6, and where a sandbox refuses openat2(), a path that contains a symbolic link is refused. The
    kernel's own names of mapped files contain none.

    Raises:
        OSError: it cannot be opened.
    """
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = ctypes.create_string_buffer(
            struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
        )
        name = ctypes.create_string_buffer(os.fsencode(path))
        if b"\0" in name.raw[:-1]:
            raise ValueError("embedded null byte")
        fd = _syscall(_OPENAT2, top, ctypes.addressof(name), ctypes.addressof(how), 24)
        if fd >= 0:
            return fd
        refused = libc.last_error()
        if refused.errno in (errno.ENOSYS, errno.EPERM):
            return _step_by_step(top, path, flags)
        raise OSError(refused.errno, refused.strerror, path)
    finally:
        os.close(top)


def _step_by_step(top: int, path: str, flags: int) -> int:
    *folders, last = [part for part in path.split("/") if part] or ["."]
    if ".." in (*folders, last):
        raise OSError(errno.EXDEV, "leads out of the root", path)
    at = os.dup(top)
    try:
        for folder in folders:
            step = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = step
        return os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


def identity_in_maps(fd: int) -> tuple[int, int]:
    """The (device, inode) that the kernel reports for a mapping of this file; btrfs and overlayfs differ from stat(2).

    Raises:
        OSError, ValueError: it cannot be mapped.
    """
    import mmap

    import numpy as np

    options: dict[str, Any] = {"prot": getattr(mmap, "PROT_READ", 1), "flags": getattr(mmap, "MAP_PRIVATE", 2)}
    with mmap.mmap(fd, 1, **options) as mapped:
        view = np.frombuffer(mapped, "u1")
        columns, at = procfs.read_maps(os.getpid()).columns, view.ctypes.data
        del view
    row = int(np.searchsorted(columns["start"], np.uint64(at), "right")) - 1
    return int(columns["dev"][row]), int(columns["ino"][row])
