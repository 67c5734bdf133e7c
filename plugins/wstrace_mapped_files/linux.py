"""Mapped files on Linux: /proc/PID/maps for a listing, PROCMAP_QUERY for a single question.

Source: Documentation/filesystems/proc.rst; include/uapi/linux/fs.h struct procmap_query (Linux 6.11).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable
from wstrace_os import procfs
from wstrace_os.foreign import declare

LISTING_NS = 100_000_000
COMPLETE = True

#: size, query_flags, query_addr | vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode, dev_major,
#: dev_minor, vma_name_size, build_id_size, vma_name_addr, build_id_addr
_QUERY = struct.Struct("<9Q4I2Q")
assert _QUERY.size == 104  # struct procmap_query
_PROCMAP_QUERY = 3 << 30 | _QUERY.size << 16 | ord("f") << 8 | 17  # _IOWR('f', 17, struct procmap_query)
_NAME_BYTES = 4096

_ioctl = declare(None, "ioctl", ctypes.c_int32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_void_p)


def listing(pid: int, addresses: NDArray[np.uint64], strings: Dictionary) -> Mapping[str, NDArray[Any]] | None:
    """All mappings of a process now, as columns of schema.ADDRESS_SPACE sorted by start; None when it is gone."""
    try:
        return procfs.read_maps(pid).coded(strings)
    except TargetExited:
        return None


def mapped_file(address: int, pid: int | None = None) -> str | None:
    """The path of the file mapped at an address, None where none is.

    Raises:
        TargetExited: there is no such process.
        Unavailable: it belongs to someone else.
    """
    pid = os.getpid() if pid is None else pid
    if not 0 <= address < 1 << 64:
        return None
    name = _query(pid, address)
    if name is None:
        maps = procfs.read_maps(pid)
        inside = np.flatnonzero((maps.columns["start"] <= address) & (np.uint64(address) < maps.columns["end"]))
        name = maps.files[maps.columns["file"][inside[0]]] if len(inside) else ""
    path, _ = procfs.label(name)
    return path if path.startswith("/") else None


def _query(pid: int, address: int) -> str | None:
    """The name of the mapping at an address, "" for none; None where the kernel has no PROCMAP_QUERY."""
    try:
        maps = os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)  # type: ignore[attr-defined, unused-ignore]
    except OSError:
        return None  # the other way says why
    try:
        name = ctypes.create_string_buffer(_NAME_BYTES)
        fields = (_QUERY.size, 0, address, *(0,) * 6, 0, 0, _NAME_BYTES, 0, ctypes.addressof(name), 0)
        query = ctypes.create_string_buffer(_QUERY.pack(*fields), _QUERY.size)
        if _ioctl(maps, _PROCMAP_QUERY, query) == 0:
            return os.fsdecode(name.value)
        return "" if ctypes.get_errno() == errno.ENOENT else None
    except Unavailable:
        return None
    finally:
        os.close(maps)
