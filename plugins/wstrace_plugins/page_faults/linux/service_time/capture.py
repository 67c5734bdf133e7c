"""The service times of a trace: the programs on its events, and the column that they fill."""

from __future__ import annotations

import contextlib
import os
import platform
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import Unavailable
from wstrace.interfaces import Context, Level
from wstrace.trace_info import TraceInfo
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.python_stacks import bpf
from wstrace_plugins.page_faults.linux.python_stacks.assembler import Assembler
from wstrace_plugins.page_faults.linux.python_stacks.btf import KernelTypes
from wstrace_plugins.page_faults.linux.python_stacks.kernel import BEGINS, output_attributes, refusal
from wstrace_plugins.page_faults.linux.rings import MAJOR, MINOR, Ring
from wstrace_plugins.page_faults.linux.service_time import programs
from wstrace_plugins.page_faults.linux.service_time.calibration import OwnCost, own_cost
from wstrace_plugins.page_faults.linux.service_time.rows import NO_ENTRY, NO_ROW, ServiceRows

_THREADS = 1 << 15
_KINDS = (MINOR, MAJOR)
_U32 = struct.Struct("<I")
_MACHINE = "x86_64"
#: why a fault has no time
NO_ENTRY_SEEN, LOST, BELOW, DISPLACED = (
    "its entry was not seen",
    "the kernel's buffer was full",
    "below twice the noise of the measurement",
    "displaced by another BPF program",
)


class ServiceTimes:
    """The programs that time the faults of a source, and their times.

    Args:
        info: the description of the trace; its facts tell the programs' own cost.
        cpus: the CPUs that are traced.

    Raises:
        OSError: the kernel refuses the programs.
        Unavailable: the machine is not x86-64, its kernel does not tell where it counts faults, or the programs' own
            cost cannot be measured.

    Attributes:
        own: what the programs' own work costs; it is taken off each time.
    """

    def __init__(self, info: TraceInfo, cpus: Sequence[int]) -> None:
        if platform.machine() != _MACHINE:
            raise Unavailable(
                f"the programs that measure them are for {_MACHINE}, this machine is {platform.machine()}"
            )
        self._opened: list[bpf.Map | bpf.Program] = []
        self._fds: list[int] = []
        self._info = info
        self._off = False
        self._reasons = dict.fromkeys((NO_ENTRY_SEEN, LOST, BELOW, DISPLACED), 0)
        try:
            self._threads = self._map(bpf.LRU_HASH, 8, programs.STAMP_BYTES, _THREADS, b"entered")
            self._outputs = self._map(bpf.PERF_EVENT_ARRAY, 4, 4, 2 * (max(cpus) + 1), b"times")
            self._lost = self._map(bpf.PER_CPU_ARRAY, 4, 8, len(_KINDS), b"lost")
            self._counts = fault_counts()
            self._entry = bpf.Program(programs.entry(self._threads.fd, self._counts), b"entered")
            self._opened.append(self._entry)
            self.own = own_cost(self._threads, self._counts, self._entry)
        except BaseException:
            self.close()
            raise
        info.extra |= {"service_time_own_ns": self.own.cost, "service_time_noise_ns": self.own.noise}

    def _map(self, kind: int, key: int, value: int, entries: int, name: bytes) -> bpf.Map:
        made = bpf.Map(kind, key, value, entries, name)
        self._opened.append(made)
        return made

    # -- arming ----------------------------------------------------------------------------------------------------

    def attach(self, event: int) -> None:
        """Hangs the program on an event at the entry of faults, before it counts. Tasks that are started inherit it."""
        perf.ioctl(event, perf.PERF_EVENT_IOC_SET_BPF, self._entry.fd)

    def tell(self, a: Assembler, kind: int) -> None:
        """What the program at the end of faults of a kind (0 minor, 1 major) begins with: writes the time's row."""
        programs.tell(a, self._threads.fd, self._counts, self._outputs.fd, self._lost.fd, kind)

    def join(self, ring: Ring) -> ServiceRows:
        """Lets the programs write rows into a fault ring; returns what pairs them with the samples."""
        fd = perf.perf_event_open(output_attributes(), -1, ring.cpu)
        self._fds.append(fd)
        perf.ioctl(fd, perf.PERF_EVENT_IOC_SET_OUTPUT, ring.fd)
        perf.ioctl(fd, perf.PERF_EVENT_IOC_ENABLE)
        self._outputs.set(_U32.pack(2 * ring.cpu + _KINDS.index(ring.kind)), _U32.pack(fd))
        return ServiceRows()

    # -- times -----------------------------------------------------------------------------------------------------

    def with_times(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The columns of faults with `service_ns` in ns, instead of what ServiceRows gives; counts those without."""
        times, reasons = served(columns["service_ns"], self.own)
        without = dict(zip((LOST, NO_ENTRY_SEEN, BELOW), reasons, strict=True))
        if self._off:
            without[DISPLACED] = without.pop(LOST)
        for reason, n in without.items():
            self._reasons[reason] += n
        return {**columns, "service_ns": times}

    def rows_lost(self, kind: str) -> int:
        """The rows of a kind of faults that found no room in their ring."""
        raw = self._lost.get(_U32.pack(_KINDS.index(kind))) or b""
        return int(np.frombuffer(raw, "<u8").sum())

    def reasons(self) -> Mapping[str, int]:
        """Why faults have no time -> how many."""
        return {reason: n for reason, n in self._reasons.items() if n}

    def switch_off(self) -> None:
        """The programs were taken off the events at the end of faults: from now on faults have no time."""
        self._off = True
        self._info.lack(
            "service times after they were switched off: the kernel left out more than 0.1 % of the faults, as another "
            "BPF program ran at the same time on their CPUs"
        )

    # -- end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes programs, maps and events."""
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds.clear()
        for one in self._opened:
            one.close()

    after_fork_in_child = close


def fault_counts() -> programs.Counts:
    """Where the running kernel counts a thread's faults.

    Raises:
        Unavailable: it does not tell.
    """
    for begin in BEGINS:
        types = KernelTypes(begin=begin)
        minor, major = (types.offset("task_struct", name) for name in ("min_flt", "maj_flt"))
        if minor is not None and major is not None:
            return programs.Counts(minor, major)
    raise Unavailable("this kernel's task_struct.min_flt is not where it can be read")


def served(told: NDArray[Any], own: OwnCost) -> tuple[NDArray[Any], tuple[int, int, int]]:
    """Service times in ns, u64, 0 = not known; and how many are not: no row, no entry, below twice the noise.

    Args:
        told: the last column of ServiceRows.pair().
        own: what is taken off.
    """
    timed = told > NO_ENTRY
    off = np.uint64(own.cost + 1)
    times = np.where(timed & (told > off), told - off, np.uint64(0))
    below = timed & (times < max(own.least, 1))
    times[below] = 0
    none = int(np.count_nonzero(told == NO_ROW))
    return times, (none, int(np.count_nonzero(told == NO_ENTRY)), int(np.count_nonzero(below)))


def service_times(context: Context, cpus: Sequence[int]) -> ServiceTimes:
    """The programs, loaded and calibrated.

    Raises:
        Unavailable: they cannot be had, with what lifts that.
    """
    try:
        return ServiceTimes(context.info, cpus)
    except (OSError, Unavailable) as error:
        no = error if isinstance(error, Unavailable) else refusal(error)
        raise Unavailable(f"service times: {no.why}", no.remedy) from None


def level() -> Level:
    """Whether service times can be had here: "measured" or "none", by loading the programs and a calibration."""
    try:
        ServiceTimes(TraceInfo(), perf.online_cpus()).close()
    except (OSError, Unavailable) as error:
        no = error if isinstance(error, Unavailable) else refusal(error)
        return Level("none", no.why, no.remedy)
    return Level("measured")
