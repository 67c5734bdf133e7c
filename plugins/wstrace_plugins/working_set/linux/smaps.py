"""What /proc/PID/smaps has and maps lacks: VmFlags, Referenced.

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
_KEPT = rb"(?m)^(?:[0-9a-f]+-[0-9a-f]+ [r-][w-][x-][ps] |(?:VmFlags|Referenced|Rss):.*$)"
#: More lines than any kernel has for a mapping.
_LINES = 64


def read(pid: int) -> bytes:
    """What is used of /proc/PID/smaps: see kept(). Raises TargetExited or Unavailable."""
    try:
        with open(f"/proc/{procfs.memory_task(pid)}/smaps", "rb", buffering=0) as opened:  # noqa: PTH123
            return kept(opened.fileno())
    except OSError as error:
        raise _refused(pid, "smaps", error) from None


def kept(fd: int) -> bytes:
    """Of an open smaps the beginning of each mapping, without its path, and the used fields. Raises OSError."""
    return b"\n".join(line for piece in procfs.pieces(fd, lines=_LINES) for line in re.findall(_KEPT, piece))


def rollup(pid: int) -> dict[str, int]:
    """The sums over all mappings, in bytes, under the kernel's names: Private_Clean, Private_Hugetlb ... (Linux 4.14).

    Raises:
        TargetExited: there is no such process.
        Unavailable: it belongs to someone else.
    """
    try:
        text = procfs.content(f"/proc/{procfs.memory_task(pid)}/smaps_rollup")
    except OSError as error:
        raise _refused(pid, "smaps_rollup", error) from None
    lines = (line.split() for line in text.split(b"\n")[1:])
    return {words[0].decode().rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3}


def _refused(pid: int, name: str, error: OSError) -> Unavailable:
    if isinstance(error, FileNotFoundError | ProcessLookupError):
        return TargetExited(f"there is no process {pid}")
    return Unavailable(f"cannot read /proc/{pid}/{name}: {error.strerror}")


def parse(text: bytes) -> dict[int, frozenset[str]]:
    """Start of a mapping -> its two-letter flags (`lo` locked, `ht` hugetlb, `uw` write-protected by userfaultfd)."""
    return {start: frozenset(words.decode("ascii", "replace").split()) for start, words in _field(text, b"VmFlags:")}


def sizes(text: bytes, field: bytes) -> dict[int, int]:
    """Start of a mapping -> the bytes of it that a field says: `Referenced:`, `Rss:`."""
    return {start: int(words.split()[0]) * 1024 for start, words in _field(text, field)}


def _field(text: bytes, name: bytes) -> Iterator[tuple[int, bytes]]:
    start = None
    for line in text.split(b"\n"):
        if found := re.match(_MAPPING, line):
            start = int(found[1], 16)
        elif line.startswith(name) and start is not None:
            yield start, line[len(name) :]
