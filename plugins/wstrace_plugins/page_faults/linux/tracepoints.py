"""The tracepoints for what perf's own records lack: unmapped and moved memory, and processes that share memory.

Those of rare calls are seen of all processes, and have rings of their own: another process that calls all the time can
cost what calls take away, but no mapping. Where many others call more than MOST_A_SECOND times in the long run, they
are switched off; the trace says that these kinds of losses are not known.

They are available where tracefs may be read, usually by root. Source: /sys/kernel/tracing/events/*/*/format.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wstrace.clock import now_ns
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.calls import RETURNED
from wstrace_plugins.page_faults.linux.rings import Ring

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace_plugins.page_faults.linux.side_band import SideBand

_FOLDER = "/sys/kernel/tracing/events"
#: On each thread: the name of a call, or of its return -> the tracepoint.
SYSCALLS = {"munmap": "sys_enter_munmap", "mremap": "sys_enter_mremap", "mremap" + RETURNED: "sys_exit_mremap"}
_EVENTS = (*(f"syscalls/{name}" for name in SYSCALLS.values()), "task/task_newtask")
#: The rare calls that take content away. They are opened once per CPU, for all processes: on each thread they cost
#: three times the descriptors, and each new thread the time to inherit them. Name -> the filters of its entry and, if
#: that is recorded, of its return.
_ADVICE = " || ".join(f"behavior == {advice}" for advice in (4, 8, 9, 22, 23, 24, 102))
EVERYWHERE = {
    "madvise": (f"{_ADVICE} || behavior == 20 || behavior == 21", "ret == 0 || ret == -12"),  # ENOMEM: a part was done
    "process_madvise": (_ADVICE, "ret > 0"),
    "brk": ("", ""),
    "shmdt": ("", "ret == 0"),
    "mmap": ("flags & 0x8010", "ret < 0"),  # MAP_FIXED, MAP_POPULATE; what it maps is in a record of its own
    "mlock": ("",),
    "mlock2": ("!(flags & 1)",),  # without MLOCK_ONFAULT
    # MCL_CURRENT without MCL_ONFAULT; the records of mappings tell what is locked from then on
    "mlockall": ("(flags & 1) && !(flags & 4)",),
    "shmat": ("shmflg & 0x4000", "ret > 0"),  # SHM_REMAP
}

#: The filter of new tasks: processes that share their parent's memory. CLONE_VM, CLONE_THREAD
_SHARING = "(clone_flags & 0x100) && !(clone_flags & 0x10000)"


@contextmanager
def permitted() -> Iterator[list[NDArray[Any]]]:
    """The perf_event_attr of each tracepoint: those of SYSCALLS, then that of new tasks. Each is tried out.

    The list is empty where tracefs or perf does not permit them, and lacks the last one where only that is refused: a
    user may trace his own processes with the others (TRACE_EVENT_FL_CAP_ANY). The tried events stay open while entered,
    because the kernel waits 10 to 40 ms for all CPUs whenever a tracepoint's last event is closed
    (tracepoint_synchronize_unregister()).
    """
    tried: list[int] = []
    try:
        yield _try_out(tried)
    finally:
        perf.close_all(tried)


def _try_out(tried: list[int]) -> list[NDArray[Any]]:
    try:
        *calls, new_task = [_attribute(number) for number in _ids(_EVENTS)]
        for one in calls:
            tried.append(perf.perf_event_open(one, 0, -1))  # noqa: PERF401 - the third may fail
    except (OSError, ValueError):
        return []
    try:
        tried.append(watch_births(new_task, os.sched_getaffinity(0).pop()))
    except OSError:
        return calls
    return [*calls, new_task]


def numbers(calls: Sequence[NDArray[Any]]) -> dict[str, int]:
    """Name of a system call -> the id of its tracepoint, of the perf_event_attr of SYSCALLS."""
    return dict(zip(SYSCALLS, [int(one["config"][0]) for one in calls], strict=True)) if calls else {}


def watch_births(attributes: NDArray[Any], cpu: int) -> int:
    """Opens the event of new tasks on all processes of one CPU, for those alone that share their parent's memory.

    Returns its descriptor. Such births are rare, and one event a CPU does not need one on each thread. Raises OSError.
    """
    return _open_filtered(attributes, cpu, _SHARING)


def watch_calls(cpus: Sequence[int]) -> tuple[dict[str, int], list[tuple[int, int]]]:
    """Opens the tracepoints of EVERYWHERE on all processes: (their ids by name, [(CPU, descriptor)]).

    Both are empty where tracefs or perf does not permit it.
    """
    ids: dict[str, int] = {}
    opened: list[tuple[int, int]] = []
    try:
        for name, filters in EVERYWHERE.items():
            for side, only in zip(("enter", "exit"), filters, strict=False):
                [number] = _ids([f"syscalls/sys_{side}_{name}"])
                ids[name + RETURNED * (side == "exit")] = number
                for cpu in cpus:
                    opened.append((cpu, _open_filtered(_attribute(number), cpu, only)))  # noqa: PERF401 - one may fail
    except (OSError, ValueError):
        perf.close_all(fd for _, fd in opened)
        return {}, []
    return ids, opened


def _open_filtered(attributes: NDArray[Any], cpu: int, only: str) -> int:
    fd = perf.perf_event_open(attributes, -1, cpu)
    text = ctypes.create_string_buffer(only.encode())
    try:
        if only:
            perf.ioctl(fd, perf.PERF_EVENT_IOC_SET_FILTER, ctypes.addressof(text))
    except OSError:
        os.close(fd)
        raise
    return fd


def _ids(events: Sequence[str]) -> list[int]:
    """The ids of tracepoints. Raises OSError, ValueError."""
    return [int(procfs.content(f"{_FOLDER}/{event}/id")) for event in events]


def _attribute(number: int) -> NDArray[Any]:
    kinds = perf.PERF_SAMPLE_TID | perf.PERF_SAMPLE_TIME | perf.PERF_SAMPLE_RAW
    return perf.attr(perf.PERF_TYPE_TRACEPOINT, number, "inherit", "sample_id_all", sample_period=1, sample_type=kinds)


#: Of each CPU; of all; and the least of one. All are powers of two.
_RING_BYTES, _RINGS_BYTES, _LEAST_RING = 1 << 20, 32 << 20, 1 << 16
_RECORD = 256  # no record of a call is as long
#: Records of others, at 2 us of our CPU each: so many at once, and so many a second.
_AT_ONCE, MOST_A_SECOND = 100_000, 5_000


class RareCalls:
    """The events and rings of all CPUs; none where that is not permitted.

    Args:
        cpus: the CPUs.
        wanted: whether to open them at all.

    Attributes:
        complete: whether none was left out or switched off.
    """

    def __init__(self, cpus: Sequence[int], *, wanted: bool) -> None:
        self.complete = wanted
        self.numbers: dict[str, int] = {}
        self._rings: list[Ring] = []
        self._fds: list[int] = []
        self._began = time.monotonic()
        if not wanted:
            return
        share = 1 << (_RINGS_BYTES // max(len(cpus), 1)).bit_length() - 1
        ring_bytes = max(min(_RING_BYTES, share), _LEAST_RING)
        self.numbers, opened = watch_calls(cpus)
        self.complete = bool(opened)
        self._fds = [fd for _, fd in opened]
        try:
            for cpu in cpus if opened else ():
                self._rings.append(Ring("calls", cpu, ring_bytes))
            self._enable(opened)
        except OSError:  # no room for them
            self.close()
            self.numbers, self.complete = {}, False

    def _enable(self, opened: Sequence[tuple[int, int]]) -> None:
        into = {ring.cpu: ring.fd for ring in self._rings}
        for cpu, fd in opened:
            perf.ioctl(fd, perf.PERF_EVENT_IOC_SET_OUTPUT, into[cpu])
            perf.ioctl(fd, perf.PERF_EVENT_IOC_ENABLE)

    @property
    def filled(self) -> bool:
        """Whether it is time to read: a quarter of a ring is full."""
        return any(ring.waiting > ring.size // 4 for ring in self._rings)

    def tell(self, side: SideBand) -> None:
        """Gives what the rings hold to the side band; of one that was full, that it lost the rest.

        The kernel tells a loss only with the next record. A ring may have become full while it was read.
        """
        for ring in self._rings:
            if len(raw := ring.read()):
                full = len(raw) + ring.waiting > ring.size - _RECORD
                side.take(raw.tobytes(), rare=True, full_ns=now_ns() if full else 0)
        if self.too_many(side.others):
            side.rare_calls_end(EVERYWHERE)

    def too_many(self, others: int) -> bool:
        """Whether to switch off, after so many records of other processes. True once, and it is done."""
        if not self._fds or others <= _AT_ONCE + MOST_A_SECOND * (time.monotonic() - self._began):
            return False
        self.disarm()
        self.complete = False
        return True

    def disarm(self) -> None:
        """Ends the events; what the rings hold can still be read."""
        perf.close_later(self._fds)

    def close(self) -> None:
        """Ends the events and unmaps the rings."""
        self.disarm()
        for ring in self._rings:
            ring.close()
        self._rings = []
