"""Whether a limit of this process leaves room for what it is to do: RLIMIT_AS, the shell's `ulimit -v`."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource

from wstrace.errors import Unavailable
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.libc import mallopt

_M_ARENA_MAX = -8
#: What a trace maps. `run` had 28 MB before it, 213 MB in all, and 298 MB with native stacks (VmPeak, Linux 6.18, two
#: CPUs); with native stacks of `import numpy`, tables were complete from 360,000 KiB on. For each of up to 8 CPUs, the
#: kernel's buffers take up to 25 MiB of that.
_ROOM, _ROOM_PER_CPU, _CPUS = 304 << 20, 27 << 20, 8


def check_room() -> None:
    """Returns if there is room for a trace. Raises Unavailable, as room()."""
    room(_ROOM + _ROOM_PER_CPU * min(os.cpu_count() or 1, _CPUS), "a trace")


def room(least: int, what: str) -> int | None:
    """The bytes that may be mapped yet; None = no limit. Under one, malloc serves all threads from one arena from then
    on.

    Without that, glibc reserves 64 MiB for each thread; and when a new thread of CPython 3.11 finds no memory before it
    has said that it runs, Thread.start() waits for ever.

    Args:
        least: bytes that are needed. what: for what.

    Raises:
        Unavailable: the limit leaves too little; the error names it, and the least one that suffices.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    with contextlib.suppress(Unavailable):  # musl has no mallopt, and no arenas.
        mallopt(_M_ARENA_MAX, 1)
    used = int(procfs.content("/proc/self/statm").split()[0]) * mmap.PAGESIZE
    try:
        # Mapped without any right, which the limit counts, and neither memory nor vm.overcommit_memory does.
        mmap.mmap(-1, least, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
    except OSError:
        enough = -(-(used + least) // 10_240_000) * 10_000
        raise Unavailable(
            f"this process may have {limit >> 10:,} KiB of address space (RLIMIT_AS), too little for {what}",
            f"allow at least {enough:,} KiB: ulimit -v {enough}, or unlimited",
        ) from None
    return limit - used
