"""Opens files that a trace, a mapping or a process names, once they are known to be harmless; proves which they are.

To open a device may have effects (a watchdog's timer starts), and so may reading a kernel's file: what has such a name
is first only pointed at (O_PATH). A name is that in its process's root: in ours, another file may have it, and opening
`/proc/PID/root/x` by its path would follow an absolute symbolic link to *our* x.

Source: open(2), O_PATH; fstatfs(2); openat2(2), include/uapi/linux/openat2.h: struct open_how.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import struct
from collections.abc import Callable
from contextlib import suppress

from wstrace.errors import WstraceError
from wstrace_plugins.os.foreign import Foreign
from wstrace_plugins.os.linux import libc, procfs

_fstatfs = Foreign(None, "fstatfs", ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
_OPENAT2 = 437  # The number is the same on every architecture.
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
#: f_type of file systems that hold no files but the kernel's answers: procfs, sysfs, debugfs, tracefs
_ANSWERS = (0x9FA0, 0x62656572, 0x64626720, 0x74726163)


def open_named(path: str, root: str = "", inode: int = 0, *, links: bool = True) -> int:
    """A descriptor, for reading, of a regular file that is none of the kernel's own.

    path: its name; absolute where there is a root. root: the folder that is `/` for the path; "" = ours. Before Linux
    5.6, and where a sandbox refuses openat2(), it is refused. inode: the number that it must have; 0 = any. links:
    whether it may be a symbolic link. Raises OSError: it is something else, or cannot be opened; ValueError: the path
    has a null byte.
    """
    flags = os.O_PATH | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    if not root:
        return _opened(os.open(path, flags), path, inode)
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _opened(_open_below(top, path, flags), path, inode)
    finally:
        os.close(top)


def _open_below(top: int, path: str, flags: int) -> int:
    """Opens a path with the folder of a descriptor as its root. Raises OSError, ValueError."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    resolve = _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS
    how = ctypes.create_string_buffer(struct.pack("=QQQ", flags, 0, resolve))
    text = ctypes.create_string_buffer(name)
    fd = libc.syscall(_OPENAT2, top, ctypes.addressof(text), ctypes.addressof(how), 24)
    if fd < 0:
        raise libc.last_error()
    return fd


def _opened(fd: int, path: str, inode: int) -> int:
    """Opens for reading what an O_PATH descriptor, which is closed, points at."""
    status, about = os.fstat(fd), (ctypes.c_ulong * 32)()  # struct statfs, 120 bytes, begins with f_type
    refused = not stat.S_ISREG(status.st_mode) or _fstatfs(fd, ctypes.addressof(about)) or about[0] in _ANSWERS
    if not refused and inode in (0, status.st_ino):
        try:
            return os.open(f"/proc/self/fd/{fd}", _READ)
        finally:
            os.close(fd)
    os.close(fd)
    raise OSError(f"{path} is {'no regular file' if refused else 'another file by now'}")


def open_mapped(pid: int, name: str, inode: int, proven: Callable[[int], bool], span: tuple[int, int]) -> int:
    """A descriptor, for reading, of the first file that is proven to be what the process had mapped; -1 = none is.

    pid: the process; it may have ended. name: the absolute path that the file has in the process's root. inode: its
    number; only a file with that one is opened by its name in our root. 0 = not known. proven: whether a descriptor is
    of that file. span: begin and end of a mapping of it, where known: the process's own link to what is mapped there
    leads to a deleted or replaced file, too; it needs privilege.
    """
    link = f"/proc/{pid}/map_files/{span[0]:x}-{span[1]:x}"
    for path, root, number in ((link, "", 0), (name, f"/proc/{pid}/root", 0), (name, "/", inode))[: 3 if inode else 2]:
        with suppress(OSError, ValueError):
            fd = open_named(path, root, number)
            with suppress(OSError, ValueError):
                if proven(fd):
                    return fd
            os.close(fd)
    return -1


def is_mapped(fd: int, dev: int, ino: int) -> bool:
    """Whether this is the file with the device and inode that the kernel tells for mappings of it; 0 = not known."""
    status = os.fstat(fd)
    if not ino or (dev, ino) == (status.st_dev, status.st_ino):
        return ino > 0
    with suppress(OSError, ValueError, WstraceError):
        return (dev, ino) == identity_in_maps(fd)
    return False


def identity_in_maps(fd: int) -> tuple[int, int]:
    """The (device, inode) that the kernel reports for a mapping of this file; btrfs and overlayfs differ from stat(2).

    Raises OSError, ValueError: it cannot be mapped.
    """
    import numpy as np

    with mmap.mmap(fd, 1, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as mapped:  # never read: see SIGBUS
        view = np.frombuffer(mapped, "u1")
        columns, at = procfs.read_maps(os.getpid()).columns, view.ctypes.data
        del view
    row = int(np.searchsorted(columns["start"], np.uint64(at), "right")) - 1
    return int(columns["dev"][row]), int(columns["ino"][row])
