"""System calls of the traced threads, from tracepoints of their entries and returns: what they do to an address space.

Rows of ADDRESS_SPACE tell what munmap() and mremap() change, which perf itself does not report: without that a growing
list (realloc() calls mremap()) has faults at addresses for which no mapping is known. Rows of CONTENT_LOSS tell what
takes the content of addresses away or moves it. Their time is that of a call's entry: before it nobody but the caller
knows what the call will take away, and after it another thread may have mapped or touched the same place again.

Which processes share one address space, by clone() with CLONE_VM but no CLONE_THREAD, or vfork() until its exec,
PERF_RECORD_FORK does not report. The tracepoint task_newtask does, right after the FORK record and on the same thread
(copy_process() in kernel/fork.c). Where it is not permitted, kcmp(2) answers for processes that are still alive.

Those of rare calls are seen of all processes, and have rings of their own: another process that calls all the time can
cost what calls take away, but no mapping. Where many others call more than MOST_A_SECOND times in the long run, they
are switched off; the trace says that these kinds of losses are not known.

They are available where tracefs may be read, usually by root. Source: /sys/kernel/tracing/events/*/*/format.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from wstrace.clock import now_ns
from wstrace.schema import (
    LOSS_BRK,
    LOSS_DISCARDED,
    LOSS_EVENTS,
    LOSS_EXECUTED,
    LOSS_FORKED,
    LOSS_LAZILY_FREED,
    LOSS_MOVED,
    LOSS_PERHAPS,
    LOSS_PERHAPS_FORKED,
    LOSS_PERHAPS_UNMAPPED,
    LOSS_POPULATED,
    LOSS_REPLACED,
    LOSS_SHARES,
    LOSS_UNMAPPED,
    SPACE_MOVE,
    SPACE_UNMAP,
)
from wstrace_plugins.os.linux import libc, procfs
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.rings import Ring

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A SAMPLE of type TID|TIME|RAW: pid, tid, time, size; then 16 bytes (common_type ... __syscall_nr) and u64 arguments.
_SAMPLE = struct.Struct("<IIQI")
_COMMON_TYPE = struct.Struct("<H")
_ONE = struct.Struct("<Q")
_RAW, _ARGUMENTS = 8 + _SAMPLE.size, 8 + _SAMPLE.size + 16
_KEPT = 4096
_PAGE = mmap.PAGESIZE
MAP_FIXED, MAP_LOCKED, MAP_POPULATE = 0x10, 0x2000, 0x8000

#: The arguments of each call that is read, which tell what it does to memory.
_LAYOUTS = {
    name: struct.Struct(f"<{n}Q")
    for name, n in (
        ("munmap", 2),
        ("mremap", 4),
        ("madvise", 3),
        ("process_madvise", 5),
        ("brk", 1),
        ("shmdt", 1),
        ("mmap", 4),
        ("shmat", 3),
        ("mlock", 2),
        ("mlock2", 3),
        ("mlockall", 1),
    )
}
#: What stands behind the name of a call in that of its return.
RETURNED = " returned"
#: Return values from here on are -errno.
_ERRORS = (1 << 64) - 4096
#: madvise() goes on behind a hole in its range, and then says so (madvise_walk_vmas() in mm/madvise.c).
_DONE_IN_PART = {"madvise": (1 << 64) - errno.ENOMEM}


class Call(NamedTuple):
    """A call that has not failed: its times of entry and return, arguments and result; or its entry alone."""

    name: str
    pid: int
    entered_ns: int
    returned_ns: int
    arguments: tuple[int, ...]
    result: int = 0


class Calls:
    """Calls from the records of their entries and returns.

    numbers: the ids of the tracepoints, by the name of the call, or that and RETURNED.
    """

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._names = {number: name for name, number in numbers.items()}
        self._awaited = {name.removesuffix(RETURNED) for name in numbers if name.endswith(RETURNED)}
        self._entered: dict[int, Call] = {}  # thread -> the call of which the return is still to come

    @property
    def names(self) -> frozenset[str]:
        """The names of the calls that are traced."""
        return frozenset(self._names.values())

    def end(self, names: Collection[str]) -> None:
        """These calls are not traced any more."""
        self._names = {number: name for number, name in self._names.items() if name not in names}

    def known(self, time_ns: int, record: bytes) -> Call | None:
        """The call that is known with this record of a tracepoint; None where none is, or it failed."""
        if len(record) < _ARGUMENTS + _ONE.size:
            return None
        pid, tid, _, _ = _SAMPLE.unpack_from(record, 8)
        name = self._names.get(_COMMON_TYPE.unpack_from(record, _RAW)[0], "")
        if (layout := _LAYOUTS.get(name)) is None:
            entered, result = self._entered.pop(tid, None), _ONE.unpack_from(record, _ARGUMENTS)[0]
            if entered is None or name != entered.name + RETURNED:
                return None
            failed = result >= _ERRORS and result != _DONE_IN_PART.get(entered.name)
            return None if failed else entered._replace(returned_ns=time_ns, result=result)
        if len(record) < _ARGUMENTS + layout.size:
            return None
        call = Call(name, pid, time_ns, time_ns, layout.unpack_from(record, _ARGUMENTS))
        if name not in self._awaited:
            return call
        if len(self._entered) >= _KEPT:  # their returns were lost
            self._entered.clear()
        self._entered[tid] = call
        return None

    def mapped(self, time_ns: int, pid: int, tid: int, start: int, end: int) -> Call | None:
        """The mmap() of a fixed address that has made this mapping, which may be larger: it grows a neighbour."""
        if (call := self._entered.get(tid)) is None or call.name != "mmap":
            return None
        del self._entered[tid]
        if not call.arguments[3] & MAP_FIXED:
            call = call._replace(arguments=(start, end - start, *call.arguments[2:]))
        address, length = call.arguments[:2]
        return call._replace(pid=pid, result=address) if start <= address <= address + length <= end else None


MREMAP_FIXED, MREMAP_DONTUNMAP = 2, 4
#: Bytes of the largest folio of a file: as many as a page table maps (MAX_PAGECACHE_ORDER in linux/pagemap.h).
LARGEST_FOLIO = _PAGE * _PAGE // 8
END = (1 << 64) - 1

Row = tuple[int, ...]  # a row of a stream


def space_rows(call: Call) -> list[Row]:
    """The ADDRESS_SPACE rows of munmap() and mremap(), none of another call.

    What was unmapped counts from the entry on, because another thread may have mapped the same place in between.
    """
    if call.name == "munmap":
        return [_unmap(call, *call.arguments)]
    if call.name != "mremap":
        return []
    start, old, new, flags = call.arguments
    old, new, to = pages(old), pages(new), call.result
    moved = min(old, new) or _PAGE  # of 0 bytes, it maps shared memory at a second place
    stays = not old or flags & MREMAP_DONTUNMAP > 0
    rows = [_unmap(call, start + new, old - new)] * (new < old)
    if to != start or new > old:
        rows.append((call.entered_ns, call.pid, SPACE_MOVE, to, to + new, start, 0, call.returned_ns, moved, stays))
    return rows


def pages(length: int) -> int:
    """The length in bytes, rounded up to whole pages."""
    return -(-length // _PAGE) * _PAGE


def _unmap(call: Call, start: int, length: int) -> Row:
    return (call.entered_ns, call.pid, SPACE_UNMAP, start, min(start + pages(length), END), 0, 0, 0, 0, 0)


#: The offset of clone_flags in a SAMPLE of type TID|TIME|RAW.
_FLAGS_AT = _RAW + 32
_CLONE_VM, _CLONE_THREAD = 0x100, 0x10000


#: How long a birth may wait to be known as one that shares memory. The tracepoint follows the record of the fork on the
#: same thread (copy_process() in kernel/fork.c), which may be preempted in between.
_BIRTH_NS = 10_000_000

#: The system calls whose tracepoints tell of a kind of loss.
_NEEDED = {
    LOSS_UNMAPPED: {"munmap", "mremap", "shmdt"},
    LOSS_REPLACED: {"mmap", "mremap", "shmat"},
    LOSS_DISCARDED: {"madvise", "process_madvise"},
    LOSS_LAZILY_FREED: {"madvise", "process_madvise"},
    LOSS_MOVED: {"mremap"},
    LOSS_EXECUTED: set[str](),
    LOSS_BRK: {"brk"},
    LOSS_POPULATED: {"madvise", "mlock", "mlock2", "mlockall", "mmap"},
}
#: MADV_DONTNEED, _REMOVE, _DONTNEED_LOCKED, _GUARD_INSTALL; MADV_FREE; MADV_POPULATE_READ, _WRITE; MADV_COLD and
#: MADV_PAGEOUT, which unmap pages of files that may stay in the page cache
_ADVICE = {
    **dict.fromkeys((4, 9, 24, 102), LOSS_DISCARDED),
    8: LOSS_LAZILY_FREED,
    **dict.fromkeys((22, 23), LOSS_POPULATED),
    **dict.fromkeys((20, 21), LOSS_PERHAPS_UNMAPPED),
}


def _effects(call: Call) -> Iterator[tuple[int, int, int, int]]:
    """What a call other than brk() has taken away, moved or brought: event, start, length in bytes, where to."""
    first, *rest = call.arguments
    if call.name == "munmap":
        yield LOSS_UNMAPPED, first, rest[0], 0
    elif call.name == "mremap":
        old, new = pages(rest[0]), pages(rest[1])
        if new < old:
            yield LOSS_UNMAPPED, first + new, old - new, 0
        if call.result != first:
            if rest[2] & MREMAP_FIXED:
                yield LOSS_REPLACED, call.result, new, 0
            yield LOSS_MOVED, first, min(old, new), call.result  # of 0 bytes, it maps shared memory at a second place
    elif call.name == "madvise":
        event = _ADVICE.get(rest[1] & 0xFFFF_FFFF)
        if event == LOSS_PERHAPS_UNMAPPED:  # a folio of which it is a part is split, and unmapped as a whole
            low = max(first - LARGEST_FOLIO, 0)
            yield event, low, first + pages(rest[0]) + LARGEST_FOLIO - low, 0
        elif event:
            yield event, first, rest[0], 0
    elif call.name == "process_madvise":  # its ranges are in the caller's memory
        event = _ADVICE.get(rest[2] & 0xFFFF_FFFF)
        if call.result and event not in (None, LOSS_PERHAPS_UNMAPPED):
            yield LOSS_POPULATED if event == LOSS_POPULATED else LOSS_PERHAPS, 0, END, 0
    elif call.name in ("mlock", "mlock2"):
        yield LOSS_POPULATED, first, rest[0], 0
    elif call.name == "mlockall":
        yield LOSS_POPULATED, 0, END, 0
    elif call.name in ("shmat", "shmdt"):  # over what was there; of a segment of which the length is not known
        yield LOSS_PERHAPS, 0, END, 0
    elif call.name == "mmap":
        if rest[2] & MAP_FIXED:
            yield LOSS_REPLACED, first, rest[0], 0
        if rest[2] & MAP_POPULATE:
            yield LOSS_POPULATED, first, rest[0], 0


class ContentLosses:
    """Collects the rows of all processes; of those that share one address space each gets a row.

    new_task: the id of the tracepoint task_newtask, None where it is not permitted.
    """

    def __init__(self, new_task: int | None) -> None:
        self._new_task = new_task
        self._rows: list[Row] = []
        self._sharing: dict[int, frozenset[int]] = {}
        self._parents: dict[int, tuple[int, int]] = {}  # thread -> the process that it has just started, and its own
        self._born: dict[int, tuple[int, int, int]] = {}  # pid -> time, event, parent
        self._breaks: dict[int, int] = {}  # pid -> where its heap ends, in whole pages
        self._segments: dict[tuple[int, int], int] = {}  # pid, start of a segment of shmat() -> its length
        self._lost_until = 0  # until when calls of all processes may be lacking

    def __bool__(self) -> bool:
        """Whether rows wait."""
        return bool(self._rows or self._born)

    def of(self, pid: int) -> Iterable[int]:
        """The pids that share this process's address space, itself included."""
        return self._sharing.get(pid, (pid,))

    def forked(self, time_ns: int, pid: int, ppid: int, parent_thread: int) -> None:
        """A thread of process `ppid` has started process `pid`."""
        self._left(pid)
        if ppid in self._breaks:
            self._breaks[pid] = self._breaks[ppid]
        self._born[pid] = (time_ns, LOSS_PERHAPS_FORKED if self._new_task is None else LOSS_FORKED, ppid)
        if self._new_task is not None:
            if len(self._parents) >= _KEPT:  # the records that should have followed them were lost
                self._parents.clear()
            self._parents[parent_thread] = (pid, ppid)
        elif libc.same_memory(pid, ppid):
            self._joined(pid, ppid)

    def sampled(self, thread: int, record: bytes) -> bool:
        """Reads a tracepoint record of that thread; False when it is not a task_newtask record."""
        if len(record) < _RAW + _COMMON_TYPE.size or _COMMON_TYPE.unpack_from(record, _RAW)[0] != self._new_task:
            return False
        born = self._parents.pop(thread, None)
        flags = _ONE.unpack_from(record, _FLAGS_AT)[0] if len(record) >= _FLAGS_AT + _ONE.size else 0
        if born is not None and flags & (_CLONE_VM | _CLONE_THREAD) == _CLONE_VM:
            self._joined(*born)
        return True

    def shares(self, time_ns: int, pid: int, other: int) -> None:
        """A process that is already running shares the memory of another one."""
        self._joined(pid, other)
        self._rows.append((time_ns, pid, LOSS_SHARES, 0, END, 0, other))

    def _joined(self, pid: int, other: int) -> None:
        if pid in self._born:
            self._born[pid] = (self._born[pid][0], LOSS_SHARES, other)
        group = frozenset({pid, *self.of(other), other})
        self._sharing.update(dict.fromkeys(group, group))

    def _left(self, pid: int) -> None:
        """A process has ended, or execve() gave it an address space of its own."""
        self._breaks.pop(pid, None)
        rest = self._sharing.pop(pid, frozenset()) - {pid}
        self._sharing.update(dict.fromkeys(rest, rest))
        if len(rest) == 1:
            self._sharing.pop(*rest)

    def called(self, call: Call) -> None:
        """Adds what a call has taken away, moved or brought."""
        if call.name == "brk":
            # it gives the present end where it fails, and where it is wanted
            before, now = self._breaks.get(call.pid, 0), pages(call.result)
            if call.result == call.arguments[0]:
                self._add(call.entered_ns, call.pid, LOSS_BRK, now, before)
            self._breaks.update(dict.fromkeys(self.of(call.pid), now))
        segment = self._segments.pop((call.pid, call.arguments[0]), 0) if call.name == "shmdt" else 0
        call = call._replace(name="munmap", arguments=(call.arguments[0], segment)) if segment else call
        for event, start, length, to in _effects(call):
            self._add(call.entered_ns, call.pid, event, start, min(start + pages(length), END), to)

    def attached(self, pid: int, start: int, end: int) -> None:
        """A process mapped a segment of System V's shared memory."""
        if len(self._segments) >= _KEPT:
            self._segments.clear()
        self._segments[pid, start] = end - start

    def locked(self, time_ns: int, pid: int, start: int, end: int) -> None:
        """A process mapped something that is locked from the beginning: MAP_LOCKED, or after mlockall(MCL_FUTURE)."""
        self._add(time_ns, pid, LOSS_POPULATED, start, end)

    def heap(self, pid: int, end: int) -> None:
        """The heap of a process that is already running ends there, at 0 without one."""
        self._breaks.setdefault(pid, end)

    def _add(self, time_ns: int, pid: int, event: int, start: int, end: int, to: int = 0) -> None:
        if end > start:
            self._rows += [(time_ns, sharer, event, start, end, to, 0) for sharer in self.of(pid)]

    def traced(self, calls: Collection[str]) -> tuple[str, ...]:
        """The words of those kinds of losses of which every one is recorded, where these calls are traced."""
        known = [event for event, needed in _NEEDED.items() if needed <= set(calls)]
        births = [LOSS_FORKED, LOSS_SHARES] if self._new_task is not None else []
        return tuple(LOSS_EVENTS[event] for event in sorted([*known, *births]))

    def executed(self, time_ns: int, pid: int) -> None:
        """A process executed another program."""
        self._left(pid)
        self._rows.append((time_ns, pid, LOSS_EXECUTED, 0, END, 0, 0))

    def ended(self, pid: int, time_ns: int = END) -> None:
        """A process has ended; END: it is not traced any more."""
        self._left(pid)
        if time_ns < self._lost_until:
            self._rows.append((time_ns, pid, LOSS_PERHAPS, 0, END, 0, 0))

    def lost(self, time_ns: int, pids: Iterable[int], until_ns: int) -> None:
        """Calls of these processes may be lacking from that time on, and of all until the second time.

        Who is live then is given in a second call.
        """
        self._lost_until = max(self._lost_until, until_ns)
        self._rows += [(time_ns, pid, LOSS_PERHAPS, 0, END, 0, 0) for pid in pids]

    def births_lost(self) -> None:
        """Records of births were lost: whether those that have just come share memory is not known."""
        self._parents.clear()
        self._born = {
            pid: (at, LOSS_PERHAPS_FORKED if event == LOSS_FORKED else event, parent)
            for pid, (at, event, parent) in self._born.items()
        }

    def give(self, watermark: int) -> list[Row]:
        """The rows up to shortly before the watermark in order of time; all at the end of time."""
        until = watermark if watermark == END else watermark - _BIRTH_NS
        born = [(at, pid, event, 0, END, 0, other) for pid, (at, event, other) in self._born.items() if at <= until]
        for row in born:
            del self._born[row[1]]
        due = sorted((row for row in self._rows + born if row[0] <= until), key=lambda row: row[0])
        self._rows = [row for row in self._rows if row[0] > until]
        return due


_FOLDER = "/sys/kernel/tracing/events"
#: On each thread: the name of a call, or of its return -> the tracepoint.
SYSCALLS = {
    name + RETURNED * (side == "exit"): f"sys_{side}_{name}"
    for name in ("munmap", "mremap")
    for side in ("enter", "exit")
}
_EVENTS = (*(f"syscalls/{name}" for name in SYSCALLS.values()), "task/task_newtask")
#: The rare calls that take content away. They are opened once per CPU, for all processes: on each thread they cost
#: three times the descriptors, and each new thread the time to inherit them. Name -> the filters of its entry and, if
#: that is recorded, of its return.
_ADVISED = " || ".join(f"behavior == {advice}" for advice in (4, 8, 9, 22, 23, 24, 102))
EVERYWHERE = {
    "madvise": (f"{_ADVISED} || behavior == 20 || behavior == 21", "ret == 0 || ret == -12"),  # ENOMEM: a part was done
    "process_madvise": (_ADVISED, "ret > 0"),
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

    wanted: whether to open them at all. complete: whether none was left out or switched off.
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

    def read(self) -> Iterator[tuple[bytes, int]]:
        """What the rings hold, and until when each was full, in ns, so that it lost the rest; 0 = it was not.

        The kernel tells a loss only with the next record. A ring may have become full while it was read.
        """
        for ring in self._rings:
            if len(raw := ring.read()):
                full = len(raw) + ring.waiting > ring.size - _RECORD
                yield raw.tobytes(), now_ns() if full else 0

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
