"""Figures of the calling process on Linux: getrusage(2), smaps_rollup, and VmHWM, which clear_refs resets.

Source: Linux Documentation/filesystems/proc.rst, "clear_refs" (5 resets the peak resident set size) and "smaps_rollup".
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
from collections.abc import Iterator

from wstrace.errors import Unavailable
from wstrace_plugins.os.linux.libc import free, malloc, malloc_trim, mallopt, prctl, sbrk

#: PR_SET_PDEATHSIG of prctl(2).
_PARENT_DEATH_SIGNAL = 1
#: M_MMAP_THRESHOLD of mallopt(3).
_MMAP_THRESHOLD = -3
#: The sizes of the blocks that fill what is free in the heap, each until one lies behind its end: 120 KiB to 3.75 KiB.
_HELD = [120 << 10 >> n for n in range(6)]
#: A heap that has more free parts than this keeps the others.
_MOST_HELD = 1 << 16
_RSS = re.compile(rb"^Rss:\s+(\d+) kB", re.MULTILINE)
_PEAK = re.compile(rb"^VmHWM:\s+(\d+) kB\n(?:.*\n)*?VmRSS:\s+(\d+) kB", re.MULTILINE)
#: The kernel counts resident pages in parts for each CPU; a sum of them may be off by so much.
_SLACK = 4 << 20


@contextlib.contextmanager
def without_free_memory() -> Iterator[None]:
    """Gives whole free pages back (malloc_trim(3)), and holds what is still free in the heap until the end.

    Not held, it would be used again: its edges are in memory already, and a list grows in the heap as long as there is
    room behind it, instead of in a mapping of its own, so that a test takes less or more by what ran before it.

    What is larger than 128 KiB has a mapping of its own from now on, as it has in a new process: else the GNU C library
    raises that threshold with each such mapping that is freed. The C library musl has none of this.
    """
    held: list[int] = []
    try:
        with contextlib.suppress(Unavailable):
            mallopt(_MMAP_THRESHOLD, 128 << 10)
            malloc_trim(0)
            for size in _HELD:
                end = sbrk(0)
                while len(held) < _MOST_HELD and (block := malloc(size)):
                    held.append(block)
                    if block >= end:
                        break
        yield
    finally:
        for block in held:
            free(block)


def end_with(parent: int) -> None:
    """PR_SET_PDEATHSIG; whether the parent had ended before is checked behind it."""
    with contextlib.suppress(Unavailable):
        prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def faults() -> tuple[int, int | None]:
    """(minor + major, major) faults of all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt, usage.ru_majflt


def resident() -> int:
    """Rss of smaps_rollup: counted page by page, while VmRSS may be off by the counts that CPUs still hold back."""
    if found := _RSS.search(_read("smaps_rollup")):
        return int(found[1]) << 10
    raise Unavailable("/proc/self/smaps_rollup has no resident size")


def reset_peak() -> None:
    """Writes 5 to clear_refs, and checks whether that did something: other kernels (gVisor) ignore it."""
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as file:  # noqa: PTH123
            file.write(b"5")
    except OSError as error:
        raise Unavailable(f"cannot reset the peak resident size (/proc/self/clear_refs): {error.strerror}") from None
    highest, now = _peak()
    if highest > now + _SLACK:
        raise Unavailable("this kernel does not reset the peak resident size (/proc/self/clear_refs)")


def peak() -> int:
    """VmHWM."""
    return _peak()[0]


def _peak() -> tuple[int, int]:
    """(VmHWM, VmRSS) in bytes."""
    found = _PEAK.search(_read("status"))
    if found is None:
        raise Unavailable("/proc/self/status has no peak resident size (VmHWM)")
    return int(found[1]) << 10, int(found[2]) << 10


def _read(name: str) -> bytes:
    try:
        with open(f"/proc/self/{name}", "rb", buffering=0) as file:  # noqa: PTH123
            return file.readall()
    except OSError as error:
        raise Unavailable(f"cannot read /proc/self/{name}: {error.strerror}") from None
