"""What the two programs' own work adds to a fault's time, and how much that varies: measured, on faults of our own."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import Unavailable
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.python_stacks import bpf
from wstrace_plugins.page_faults.linux.service_time.programs import Counts, trial

_FAULTS = 512
_PAGE = mmap.PAGESIZE


class OwnCost(NamedTuple):
    """What the time between the programs is without a fault between them, in ns.

    cost: its median. noise: 95 % of the trials differ from the median by at most this.
    """

    cost: int
    noise: int

    @property
    def least(self) -> int:
        """The shortest time that is told: a shorter one is not known from the noise."""
        return 2 * self.noise


def own_cost(threads: bpf.Map, counts: Counts, entry: bpf.Program) -> OwnCost:
    """Measures it in the calling thread, in about a millisecond.

    Both programs hang on events of the end of a fault there, so that between them is all of their own work, and nothing
    of the fault. Which of two events of one thread comes first is the kernel's choice: both orders are tried.

    Args:
        threads: the map of stamps.
        counts: where the kernel counts a thread's faults.
        entry: the program at a fault's entry.

    Raises:
        OSError: the kernel refuses it.
        Unavailable: too few of the trials were seen.
    """
    times = bpf.Map(bpf.ARRAY, 4, 8 * (_FAULTS + 1), 1, b"trials")
    try:
        end = bpf.Program(trial(threads.fd, counts, times.fd, _FAULTS), b"trial")
        try:
            for first, second in ((end, entry), (entry, end)):
                measured = _trials(times, first, second)
                if 2 * len(measured) > _FAULTS:
                    return cost_of(measured)
        finally:
            end.close()
    finally:
        times.close()
    raise Unavailable("the cost of measuring service times could not be told: too few of 512 trials were seen")


def cost_of(measured: NDArray[Any]) -> OwnCost:
    """The cost and its noise that these trials show. Shape (n,), in ns."""
    cost = np.median(measured)
    return OwnCost(int(cost), int(np.percentile(np.abs(measured.astype(np.float64) - cost), 95)))


def _trials(times: bpf.Map, *programs: bpf.Program) -> NDArray[Any]:
    """The times of faults of this thread while the programs hang on its events, opened in this order; ns, u64."""
    times.set(struct.pack("<I", 0), bytes(8 * (_FAULTS + 1)))
    attributes = perf.attr(
        perf.PERF_TYPE_SOFTWARE, perf.PERF_COUNT_SW_PAGE_FAULTS_MIN, "exclude_kernel", "exclude_hv", sample_period=1
    )
    memory = mmap.mmap(-1, _FAULTS * _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    fds: list[int] = []
    try:
        with contextlib.suppress(OSError):  # a kernel without huge pages, as those with PREEMPT_RT are
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        for program in programs:
            fds.append(perf.perf_event_open(attributes, 0, -1))
            perf.ioctl(fds[-1], perf.PERF_EVENT_IOC_SET_BPF, program.fd)
        for fd in fds:
            perf.ioctl(fd, perf.PERF_EVENT_IOC_ENABLE)
        first = ctypes.c_char.from_buffer(memory)
        ctypes.memset(ctypes.addressof(first), 1, len(memory))
        del first
    finally:
        for fd in fds:
            os.close(fd)
        memory.close()
    found = np.frombuffer(times.get(struct.pack("<I", 0)) or bytes(8), "<u8")
    found = found[1 : 1 + int(found[0])]
    seen: NDArray[Any] = found[found > 0]
    return seen
