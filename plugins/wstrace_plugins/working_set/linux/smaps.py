"""What /proc/PID/smaps has and maps lacks: VmFlags, and what was referenced since clear_refs took the bits away.

It is read rarely, because the kernel walks all pages for it.
The processor sets the bit of a page when it translates an address in it, so a use costs the process nothing. What smaps
counts is coarser. A huge page has one bit for all of it. A page that a fault maps beside the touched one (fault-around)
begins with its bit set. And a page of a file counts for all that map it, also when another process has used it, or when
one that had used it ends. Clearing does not flush the processor's cached translations.

Source: Linux Documentation/filesystems/proc.rst, "VmFlags", "clear_refs"; fs/proc/task_mmu.c show_smap(),
clear_refs_write(), smaps_account().
"""

from __future__ import annotations

import functools
import mmap
import os
import re
from collections.abc import Callable, Mapping
from io import FileIO

import numpy as np

from wstrace.errors import TargetExited, Unavailable
from wstrace.schema import KIND_SHIFT
from wstrace_plugins.os.linux import procfs

#: of a mapping: its name, its kind (schema.KINDS), and its bytes referenced and resident
Use = tuple[str, int, int, int]
#: The beginning of a mapping's first line, after which comes a file name that may hold anything but a newline; a field.
_WANTED = rb"(?m)^(?:([0-9a-f]+)-[0-9a-f]+ [r-][w-][x-][ps] |(VmFlags|Referenced|Rss):(.*)$)"
#: More lines than any kernel has for a mapping.
_LINES = 64
#: Start of a mapping -> what `VmFlags`, `Referenced` and `Rss` say of it.
Smaps = dict[int, dict[bytes, list[bytes]]]


def read(pid: int) -> Smaps:
    """The fields of each mapping that are used here. Raises TargetExited or Unavailable."""
    path = f"/proc/{pid}/smaps"
    try:
        with FileIO(path) as opened:
            return parse(opened.fileno())
    except OSError as error:
        raise procfs.refused(pid, path, error) from None


def parse(fd: int) -> Smaps:
    """The same of an open smaps. Raises OSError."""
    found: Smaps = {}
    fields: dict[bytes, list[bytes]] = {}
    for piece in procfs.pieces(fd, lines=_LINES):
        for start, name, words in re.findall(_WANTED, piece):
            if start:
                fields = found.setdefault(int(start, 16), {})
            else:
                fields[name] = words.split()
    return found


def rollup(pid: int) -> dict[str, int]:
    """The sums over all mappings, in bytes, under the kernel's names: Private_Clean, Private_Hugetlb ... (Linux 4.14).

    Raises TargetExited: there is no such process; Unavailable: it belongs to someone else.
    """
    text = procfs.read(pid, "smaps_rollup")
    lines = (line.split() for line in text.split(b"\n")[1:])
    return {words[0].decode().rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3}


def _bytes(fields: Mapping[bytes, list[bytes]], name: bytes) -> int:
    """The size that a field says."""
    return int(fields[name][0]) * 1024 if name in fields else 0


def clear_referenced(pid: int) -> Callable[[], list[Use]]:
    """Takes all its referenced bits away; the kernel holds the process's memory lock meanwhile.

    Returns what reads what has been used since. It raises TargetExited, also when another program was executed. Raises
    TargetExited, Unavailable: nothing was cleared.
    """
    before = procfs.stat_with_memory(pid)
    if not _works():
        raise Unavailable("this kernel does not clear referenced bits (/proc/PID/clear_refs)", "use --by-emptying")

    def used() -> list[Use]:
        maps, found = procfs.read_maps(pid), read(pid)
        if procfs.stat_with_memory(pid).image != before.image:
            raise TargetExited(f"process {pid} ({before.name}) executed another program while it was watched")
        columns = (maps.columns[name].tolist() for name in ("start", "file", "flags"))
        rows = [(maps.files[file], flags, found.get(start, {})) for start, file, flags in zip(*columns, strict=True)]
        return [(name, flags >> KIND_SHIFT & 15, _bytes(fields, b"Referenced"), _bytes(fields, b"Rss"))
                for name, flags, fields in rows]  # fmt: skip

    _clear(pid)
    return used


def _clear(pid: int) -> None:
    try:
        with FileIO(f"/proc/{pid}/clear_refs", "w") as file:
            file.write(b"1")
    except (FileNotFoundError, ProcessLookupError):
        raise TargetExited(f"there is no process {pid}") from None
    except OSError as error:
        why = f"cannot clear the referenced bits of process {pid} (/proc/{pid}/clear_refs): {error.strerror}"
        raise Unavailable(why, procfs.right_to_read()) from None


@functools.cache
def _works() -> bool:
    """Whether a page of our own that was written just now loses its bit; containers' kernels may ignore the file."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[0] = 1
    at = np.frombuffer(memory, "u1").ctypes.data

    def referenced() -> int:
        found = read(os.getpid())
        return _bytes(found[max(start for start in found if start <= at)], b"Referenced")

    before = referenced()
    try:
        _clear(os.getpid())
    except Unavailable:
        return False
    return referenced() < before
