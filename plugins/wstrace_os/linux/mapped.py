"""Opens files that processes have mapped, and proves that they are those.

The name of a mapped file is that in its process's root: in ours, another file may have it, or one that has replaced it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress

from wstrace.errors import WstraceError
from wstrace_os.linux.in_root import identity_in_maps, open_in_root
from wstrace_os.linux.openat2 import reopened


def open_mapped(pid: int, name: str, proven: Callable[[int], bool], span: tuple[int, int] = (0, 0)) -> int:
    """A descriptor, for reading, of the first file that is proven to be what the process had mapped; -1 = none is.

    Args:
        pid: the process; it may have ended.
        name: the absolute path that the file has in the process's root.
        proven: whether a descriptor is of that file.
        span: begin and end of a mapping of it, where known: the process's own link to what is mapped there leads to a
            deleted or replaced file, too; it needs privilege.
    """
    link = f"/proc/{pid}/map_files/{span[0]:x}-{span[1]:x}"
    for root, path in (("", link), (f"/proc/{pid}/root", name), ("/", name)):
        with suppress(OSError, ValueError):
            fd = _regular(open_in_root(root, path, os.O_PATH) if root else os.open(path, os.O_PATH | os.O_CLOEXEC))
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


def _regular(path: int) -> int:
    """Opens for reading what an O_PATH descriptor, which is closed, names: to open a device may have effects."""
    if not stat.S_ISREG(os.fstat(path).st_mode):
        os.close(path)
        raise OSError("no regular file")
    return reopened(path)
