"""Which pages of a file are in the page cache, on Linux.

mincore(2) says which pages of a mapping are in the page cache; one that is never touched brings nothing in.
Since Linux 5.2 it answers only for a file that the caller owns or may write, and else says `all`.

Source: mincore(2); Linux mm/mincore.c can_do_mincore().
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.os.foreign import declare
from wstrace_plugins.os.linux import libc

_CHUNK = 1 << 30  # bytes of a file that one call is asked about
#: the bytes of the largest file of which mincore() is asked: 8 s
_MOST_ASKED = 1 << 40

_mincore = declare(None, "mincore", ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def cached_runs(fd: int, status: os.stat_result) -> tuple[NDArray[np.int64], NDArray[np.int64]] | str:
    """The byte ranges of an open regular file in the page cache: (starts, ends), each (n,); or why it is not known."""
    if not status.st_size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if not (os.geteuid() in (0, status.st_uid) or os.access(f"/proc/self/fd/{fd}", os.W_OK)):
        return "the kernel says which pages are in the page cache only of a file that one owns or may write"
    if status.st_size > _MOST_ASKED:
        return "which pages of so large a file are in the page cache is not asked: a TiB takes 8 s"
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for begin in range(0, status.st_size, _CHUNK):
        length = min(_CHUNK, status.st_size - begin)
        try:
            mapping = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=begin)
        except (OSError, ValueError) as error:  # a file of sysfs; one that was cut meanwhile (ValueError)
            why = "it became shorter meanwhile" if isinstance(error, ValueError) else error.strerror
            return f"what of the file is in the page cache is not known: it cannot be mapped: {why}"
        with mapping as mapped:
            here = np.frombuffer(mapped, "u1")
            found = np.zeros(-(-length // mmap.PAGESIZE), "u1")
            refused = _mincore(here.ctypes.data, length, found.ctypes.data)
            del here  # it keeps the mapping open
        if refused:
            return f"mincore: {libc.last_error().strerror}"
        edges = np.flatnonzero(np.diff((found & 1).astype("i1"), prepend=0, append=0))
        starts.append(begin + edges[::2] * mmap.PAGESIZE)
        ends.append(np.minimum(begin + edges[1::2] * mmap.PAGESIZE, status.st_size))
    return np.concatenate(starts), np.concatenate(ends)
