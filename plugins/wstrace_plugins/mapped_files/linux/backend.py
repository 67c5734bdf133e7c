"""Mapped files on Linux: /proc/PID/maps for a listing, PROCMAP_QUERY for a single question.

Source: Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited
from wstrace_plugins.mapped_files.spaces import MappingRow as Row
from wstrace_plugins.os.elf import Elf, read_of
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.named_file import is_mapped, open_mapped

if TYPE_CHECKING:
    from numpy.typing import NDArray


def listing(pid: int, strings: Dictionary) -> Mapping[str, NDArray[Any]] | None:
    """All mappings of a process now, as columns of schema.ADDRESS_SPACE sorted by start; None when it is gone."""
    try:
        return procfs.read_maps(pid).coded(strings)
    except TargetExited:
        return None


def mapped_file(address: int, pid: int | None = None) -> str | None:
    """The path of the file mapped at an address, None where none is. Raises TargetExited, Unavailable."""
    if not 0 <= address < 1 << 64:
        return None
    maps = procfs.read_maps(os.getpid() if pid is None else pid)
    inside = np.flatnonzero((maps.columns["start"] <= address) & (np.uint64(address) < maps.columns["end"]))
    path, _ = procfs.label(maps.files[maps.columns["file"][inside[0]]]) if len(inside) else ("", 0)
    return path if path.startswith("/") else None


def build_id(row: Row, name: str) -> str:
    """The build-id, in hex, of the file of a mapping with that name; "" = it has none, or it cannot be found out.

    It is read from the file that the process has mapped: by its own link, which needs privilege and leads to a deleted
    or replaced file, too; else from that path, in the process's root or in ours, if that is still the same inode. The
    kernel could say it (PROCMAP_QUERY), but reads a file for us that we may not open: one that never answers holds us
    for ever (freader_fetch() in lib/buildid.c, Linux 6.18).
    """
    if not name.startswith("/"):
        return ""
    fd = open_mapped(row.pid, name, row.ino, lambda fd: is_mapped(fd, row.dev, row.ino), (row.start, row.end))
    if fd < 0:
        return ""
    try:
        return Elf(read_of(fd)).build_id
    except ValueError:
        return ""
    finally:
        os.close(fd)
