"""PROCMAP_QUERY: which mapping of a process holds an address, for a small part of what a listing of all of them costs.

Source: include/uapi/linux/fs.h struct procmap_query (Linux 6.11).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import NamedTuple

from wstrace.errors import Unavailable
from wstrace_plugins.os.linux import libc, procfs

#: size, query_flags, query_addr | vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode, dev_major,
#: dev_minor, vma_name_size, build_id_size, vma_name_addr, build_id_addr
_QUERY = struct.Struct("<9Q4I2Q")
assert _QUERY.size == 104  # struct procmap_query
_PROCMAP_QUERY = 3 << 30 | _QUERY.size << 16 | ord("f") << 8 | 17  # _IOWR('f', 17, struct procmap_query)
_NAME_BYTES = 4096


class Answer(NamedTuple):
    """A mapping: its addresses, the offset, device and inode of its file, its name and KIND_*.

    permissions: MAP_READ, MAP_WRITE, MAP_EXECUTE, MAP_SHARED, which are the kernel's own bits here.
    """

    start: int
    end: int
    offset: int
    dev: int
    ino: int
    permissions: int
    path: str
    kind: int


class Question:
    """Queries a process. Every method raises Unavailable where the kernel refuses.

    Args:
        pid: the process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._name = ctypes.create_string_buffer(_NAME_BYTES)
        self._query = ctypes.create_string_buffer(_QUERY.size)

    def __enter__(self) -> Question:
        try:
            path = f"/proc/{procfs.memory_task(self._pid)}/maps"
            self._maps = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"the mappings of pid {self._pid} cannot be asked for: {error.strerror}") from error
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._maps)

    def ask(self, address: int) -> Answer | None:
        """What is mapped at an address, None where nothing is."""
        name = ctypes.addressof(self._name)  # no room for a build-id, which the kernel would read from the file
        _QUERY.pack_into(self._query, 0, _QUERY.size, 0, address, *(0,) * 6, 0, 0, _NAME_BYTES, 0, name, 0)
        if libc.ioctl(self._maps, _PROCMAP_QUERY, self._query) != 0:
            error = libc.last_error()
            if error.errno == errno.ENOENT:
                return None
            raise Unavailable(f"the mappings of pid {self._pid} cannot be asked for: {error.strerror}")
        found = _QUERY.unpack(self._query.raw)
        _, _, _, start, end, flags, _, offset, ino, major, minor, name_bytes, _, _, _ = found
        path, kind = procfs.label(os.fsdecode(self._name.value if name_bytes else b""))
        return Answer(start, end, offset, procfs.device(major, minor), ino, flags & 15, path, kind)
