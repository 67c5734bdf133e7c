"""Mapped files on Linux: /proc/PID/maps for a listing, PROCMAP_QUERY for a single question.

Source: Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.mapped_files.epoch import MappingRow as Row
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.named_file import is_mapped, open_mapped
from wstrace_plugins.os.linux.procmap_query import Answer, Question

if TYPE_CHECKING:
    from numpy.typing import NDArray

LISTING_NS = 100_000_000
COMPLETE = True


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
        with Question(pid) as question:
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
        with suppress(Unavailable), Question(pid) as question:
            for row in own:
                there = question.ask(row.start)
                if there and _is_of(there, row, strings[row.file]):
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
    fd = open_mapped(row.pid, name, row.ino, lambda fd: is_mapped(fd, row.dev, row.ino), (row.start, row.end))
    if fd < 0:
        return ""
    try:
        with mmap.mmap(fd, 1, access=mmap.ACCESS_READ) as mapped, Question(os.getpid()) as question:
            there = question.ask(np.frombuffer(mapped, "|u1").ctypes.data)
            return there.build_id if there else ""
    except (OSError, ValueError, Unavailable):
        return ""
    finally:
        os.close(fd)


def _is_of(there: Answer, row: Row, name: str) -> bool:
    """Whether it is the mapping of a row, of a file of that name.

    The name in the row is that in the process's root, ours has what leads to that root before it.
    """
    if (there.start, there.offset) != (row.start, row.offset):
        return False
    return (there.dev, there.ino) == (row.dev, row.ino) and there.path.endswith(name) if row.ino else there.path == name
