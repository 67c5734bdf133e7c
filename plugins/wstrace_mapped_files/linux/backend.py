"""Mapped files on Linux: /proc/PID/maps for a listing, PROCMAP_QUERY for a single question.

Source: Documentation/filesystems/proc.rst; include/uapi/linux/fs.h struct procmap_query (Linux 6.11).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable
from wstrace_mapped_files.epoch import MappingRow as Row
from wstrace_os.linux import libc, procfs
from wstrace_os.linux.mapped import is_mapped, open_mapped

LISTING_NS = 100_000_000
COMPLETE = True

#: size, query_flags, query_addr | vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode, dev_major,
#: dev_minor, vma_name_size, build_id_size, vma_name_addr, build_id_addr
_QUERY = struct.Struct("<9Q4I2Q")
assert _QUERY.size == 104  # struct procmap_query
_PROCMAP_QUERY = 3 << 30 | _QUERY.size << 16 | ord("f") << 8 | 17  # _IOWR('f', 17, struct procmap_query)
_NAME_BYTES = 4096
_BUILD_ID_BYTES = 64  # the kernel keeps 20 at most


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
        Unavailable: it belongs to another user.
    """
    pid = os.getpid() if pid is None else pid
    if not 0 <= address < 1 << 64:
        return None
    try:
        with _Question(pid) as question:
            found = question.ask(address)
        path = found.path if found else ""
    except Unavailable:
        maps = procfs.read_maps(pid)
        inside = np.flatnonzero((maps.columns["start"] <= address) & (np.uint64(address) < maps.columns["end"]))
        path, _ = procfs.label(maps.files[maps.columns["file"][inside[0]]]) if len(inside) else ("", 0)
    return path if path.startswith("/") else None


def build_ids(rows: Sequence[Row], strings: Dictionary) -> list[str]:
    """The build-ids, in hex, of the files of mappings; "" = the file has none, or it cannot be found out.

    For a live process the kernel reads the id from the very file that is mapped, even a deleted or replaced one. For a
    process that has ended, or that maps something else there by now, it is read from the file at that path, in the
    process's root or in ours, if that is still the same inode. Before Linux 6.11 the kernel does not report build-ids.
    """
    told: dict[int, str] = {}
    files: dict[tuple[int, int, int], str] = {}
    for pid, own in groupby(sorted(rows, key=attrgetter("pid")), attrgetter("pid")):
        with suppress(Unavailable), _Question(pid) as question:
            for row in own:
                there = question.ask(row.start)
                if there and there.is_of(row, strings[row.file]):
                    told[row.id] = there.build_id
    for row in rows:
        key = row.file, row.dev, row.ino
        if row.id not in told and key not in files:
            files[key] = _build_id_of(row, strings[row.file])
    return [told[row.id] if row.id in told else files[row.file, row.dev, row.ino] for row in rows]


def _build_id_of(row: Row, name: str) -> str:
    """The build-id of the mapped file, if it is found: the kernel is queried about a mapping of our own."""
    if not name.startswith("/"):
        return ""
    fd = open_mapped(row.pid, name, lambda fd: is_mapped(fd, row.dev, row.ino), (row.start, row.end))
    if fd < 0:
        return ""
    try:
        with mmap.mmap(fd, 1, access=mmap.ACCESS_READ) as mapped, _Question(os.getpid()) as question:
            there = question.ask(np.frombuffer(mapped, "|u1").ctypes.data)
            return there.build_id if there else ""
    except (OSError, ValueError, Unavailable):
        return ""
    finally:
        os.close(fd)


class _Answer(NamedTuple):
    start: int
    offset: int
    dev: int
    ino: int
    path: str
    build_id: str

    def is_of(self, row: Row, name: str) -> bool:
        """Whether it is the mapping of a row, of a file of that name.

        The name in the row is that in the process's root, ours has what leads to that root before it.
        """
        if (self.start, self.offset) != (row.start, row.offset):
            return False
        return (self.dev, self.ino) == (row.dev, row.ino) and self.path.endswith(name) if row.ino else self.path == name


class _Question:
    """Queries a process by PROCMAP_QUERY. Every method raises Unavailable where the kernel refuses."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._name = ctypes.create_string_buffer(_NAME_BYTES)
        self._build_id = ctypes.create_string_buffer(_BUILD_ID_BYTES)
        self._query = ctypes.create_string_buffer(_QUERY.size)

    def __enter__(self) -> _Question:
        try:
            path = f"/proc/{procfs.memory_task(self._pid)}/maps"
            self._maps = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"the mappings of pid {self._pid} cannot be asked for: {error.strerror}") from error
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._maps)

    def ask(self, address: int) -> _Answer | None:
        """What is mapped at an address, None where nothing is."""
        places = (ctypes.addressof(self._name), ctypes.addressof(self._build_id))
        _QUERY.pack_into(
            self._query, 0, _QUERY.size, 0, address, *(0,) * 6, 0, 0, _NAME_BYTES, _BUILD_ID_BYTES, *places
        )
        if libc.ioctl(self._maps, _PROCMAP_QUERY, self._query) != 0:
            error = libc.last_error()
            if error.errno == errno.ENOENT:
                return None
            raise Unavailable(f"the mappings of pid {self._pid} cannot be asked for: {error.strerror}")
        _, _, _, start, _, _, _, offset, ino, major, minor, name_bytes, id_bytes, _, _ = _QUERY.unpack(self._query.raw)
        path, _ = procfs.label(os.fsdecode(self._name.value if name_bytes else b""))
        return _Answer(start, offset, procfs.device(major, minor), ino, path, self._build_id.raw[:id_bytes].hex())
