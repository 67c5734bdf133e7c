"""Mapped files on Linux: /proc/PID/maps for a listing, PROCMAP_QUERY for a single question.

Source: Documentation/filesystems/proc.rst; include/uapi/linux/fs.h struct procmap_query (Linux 6.11).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable
from wstrace_mapped_files.epoch import MappingRow as Row
from wstrace_os.linux import libc, procfs

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
    process that has ended, or that maps something else there by now, it is read from the file at that path if that is
    still the same inode. Before Linux 6.11 the kernel does not report build-ids.
    """
    told: dict[int, str] = {}
    files: dict[tuple[int, int, int], str] = {}
    for pid, own in groupby(sorted(rows, key=attrgetter("pid")), attrgetter("pid")):
        with suppress(Unavailable), _Question(pid) as question:
            for row in own:
                there = question.ask(row.start)
                same = row.start, row.offset, strings[row.file]
                if there and (there.start, there.offset, there.path) == same and there.may_be(row.dev, row.ino):
                    told[row.id] = there.build_id
    for row in rows:
        key = row.file, row.dev, row.ino
        if row.id not in told and key not in files:
            files[key] = _build_id_of(Path(strings[row.file]), row.dev, row.ino)
    return [told[row.id] if row.id in told else files[row.file, row.dev, row.ino] for row in rows]


def _build_id_of(path: Path, dev: int, ino: int) -> str:
    """The build-id of a file that is still the same one: the kernel is queried about a mapping of our own."""
    with suppress(OSError, ValueError, Unavailable):
        status = path.stat()  # before open(): opening a device could have an effect on it
        if (status.st_dev, status.st_ino) == (dev, ino) and stat.S_ISREG(status.st_mode):
            with path.open("rb") as file, mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ) as mapped:
                address = np.frombuffer(mapped, "|u1").ctypes.data
                with _Question(os.getpid()) as question:
                    there = question.ask(address)
                    return there.build_id if there else ""
    return ""


class _Answer(NamedTuple):
    start: int
    offset: int
    dev: int
    ino: int
    path: str
    build_id: str

    def may_be(self, dev: int, ino: int) -> bool:
        """False when it is certainly another inode; a row without one (0) may be any inode."""
        return not ino or (dev, ino) == (self.dev, self.ino)


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
