"""Opens files by the names that a process with another root uses.

Opening `/proc/PID/root/x` by its path would follow an absolute symbolic link to *our* x. That is another file, and
whoever made the link would have a way out of the container.
"""

from __future__ import annotations

import os
from typing import Any

from wstrace_os.linux import procfs
from wstrace_os.linux.openat2 import open_below


def open_in_root(root: str, path: str, flags: int) -> int:
    """Opens the file that a process with this root knows by this absolute path; returns the descriptor.

    Before Linux 5.6, and where a sandbox refuses openat2(), a path that contains a symbolic link is refused. The
    kernel's own names of mapped files contain none.

    Raises:
        OSError: it cannot be opened.
    """
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_below(top, path, flags)
    finally:
        os.close(top)


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
