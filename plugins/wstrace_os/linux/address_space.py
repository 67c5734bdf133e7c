"""Whether a limit of this process leaves room for a trace: RLIMIT_AS, the shell's `ulimit -v`."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource

from wstrace.errors import Unavailable
from wstrace_os.linux import procfs
from wstrace_os.linux.libc import mallopt

_M_ARENA_MAX = -8
#: What a trace maps. `run` had 28 MB before it, 213 MB in all, and 298 MB with native stacks (VmPeak, Linux 6.18, two
#: CPUs); with native stacks of `import numpy`, tables were complete from 360,000 KiB on. For each of up to 8 CPUs, the
#: kernel's buffers take up to 25 MiB of that.
_ROOM, _ROOM_PER_CPU, _CPUS = 304 << 20, 27 << 20, 8


def check_room() -> None:
    """Returns if there is room for a trace. Under a limit, malloc serves all threads from one arena from then on.

    Without that, glibc reserves 64 MiB for each thread; and when a new thread of CPython 3.11 finds no memory before it
    has said that it runs, Thread.start() waits for ever.

    Raises:
        Unavailable: the limit leaves too little; the error names it, and the least one that suffices.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    with contextlib.suppress(Unavailable):  # musl has no mallopt, and no arenas.
        mallopt(_M_ARENA_MAX, 1)
    room = _ROOM + _ROOM_PER_CPU * min(os.cpu_count() or 1, _CPUS)
    try:
        # Mapped without any right, which the limit counts, and neither memory nor vm.overcommit_memory does.
        mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
    except OSError:
        used = int(procfs.content("/proc/self/statm").split()[0]) * mmap.PAGESIZE
        least = -(-(used + room) // 10_240_000) * 10_000
        raise Unavailable(
            f"this process may have {limit >> 10:,} KiB of address space (RLIMIT_AS), too little for a trace",
            f"allow at least {least:,} KiB: ulimit -v {least}, or unlimited",
        ) from None
