"""What /proc/PID/smaps has and maps lacks: VmFlags, Swap, Referenced.

It is read rarely, because the kernel walks all pages for it.

Source: Linux Documentation/filesystems/proc.rst, "VmFlags"; fs/proc/task_mmu.c show_smap().
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.linux import procfs

#: the beginning of a mapping's first line; after it comes a file name, which may hold anything but a newline
_MAPPING = rb"([0-9a-f]+)-[0-9a-f]+ [r-][w-][x-][ps] "


def read(pid: int) -> bytes:
    """The content of /proc/PID/smaps. Raises TargetExited or Unavailable."""
    return _read(pid, "smaps")


def rollup(pid: int) -> dict[str, int]:
    """The sums over all mappings, in bytes, under the kernel's names: Private_Clean, Private_Hugetlb ... (Linux 4.14).

    Raises:
        TargetExited: there is no such process.
        Unavailable: it belongs to someone else.
    """
    lines = (line.split() for line in _read(pid, "smaps_rollup").split(b"\n")[1:])
    return {words[0].decode().rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3}


def _read(pid: int, name: str) -> bytes:
    try:
        return procfs.content(f"/proc/{procfs.memory_task(pid)}/{name}")
    except (FileNotFoundError, ProcessLookupError):
        raise TargetExited(f"there is no process {pid}") from None
    except OSError as error:
        raise Unavailable(f"cannot read /proc/{pid}/{name}: {error.strerror}") from None


def parse(text: bytes) -> dict[int, frozenset[str]]:
    """Start of a mapping -> its two-letter flags (`lo` locked, `ht` hugetlb, `uw` write-protected by userfaultfd)."""
    return {start: frozenset(words.decode("ascii", "replace").split()) for start, words in _field(text, b"VmFlags:")}


def sizes(text: bytes, field: bytes) -> dict[int, int]:
    """Start of a mapping -> the bytes of it that a field says: `Swap:`, `Referenced:`, `Rss:`."""
    return {start: int(words.split()[0]) * 1024 for start, words in _field(text, field)}


def swapped(text: bytes) -> dict[int, int]:
    """Start of a mapping -> bytes of it that are swapped out."""
    return sizes(text, b"Swap:")


def _field(text: bytes, name: bytes) -> Iterator[tuple[int, bytes]]:
    start = None
    for line in text.split(b"\n"):
        if found := re.match(_MAPPING, line):
            start = int(found[1], 16)
        elif line.startswith(name) and start is not None:
            yield start, line[len(name) :]
