"""System calls of the traced threads, from tracepoints of their entries and exits: what they do to an address space.

Rows of ADDRESS_SPACE tell what munmap() and mremap() change, which perf itself does not report: without that a growing
list (realloc() calls mremap()) has faults at addresses for which no mapping is known. Rows of CONTENT_LOSS tell what
takes the content of addresses away or moves it. Their time is that of a call's entry: before it nobody but the caller
knows what the call will take away, and after it another thread may have mapped or touched the same place again.

Which processes share one address space, by clone() with CLONE_VM but no CLONE_THREAD, or vfork() until its exec,
PERF_RECORD_FORK does not report. The tracepoint task_newtask does, right after the FORK record and on the same thread
(copy_process() in kernel/fork.c). Where it is not permitted, kcmp(2) answers for processes that are still alive.

Source: /sys/kernel/tracing/events/syscalls/sys_{enter,exit}_*/format.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

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
from wstrace_plugins.os.linux import libc

#: A SAMPLE of type TID|TIME|RAW: pid, tid, time, size; then 16 bytes (common_type ... __syscall_nr) and u64 arguments.
_SAMPLE = struct.Struct("<IIQI")
_COMMON_TYPE = struct.Struct("<H")
_ONE = struct.Struct("<Q")
_RAW, _ARGUMENTS = 8 + _SAMPLE.size, 8 + _SAMPLE.size + 16
_KEPT = 4096
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
#: Return values from here on are -errno.
_ERRORS = (1 << 64) - 4096
#: madvise() goes on behind a hole in its range, and then says so (madvise_walk_vmas() in mm/madvise.c).
_DONE_IN_PART = {"madvise": (1 << 64) - errno.ENOMEM}


class Call(NamedTuple):
    """A call that has returned without an error: its times of entry and return, arguments and result; or of which the
    entry alone is recorded.
    """

    name: str
    pid: int
    entered_ns: int
    returned_ns: int
    arguments: tuple[int, ...]
    result: int


class Calls:
    """Pairs the entries of calls with their returns.

    Args:
        numbers: the ids of the tracepoints: name of the call -> (its entry, its exit); 0 = exits are not recorded.
    """

    def __init__(self, numbers: Mapping[str, tuple[int, int]]) -> None:
        self._numbers = dict(numbers)
        self._entries = {entry: name for name, (entry, _) in numbers.items()}
        self._exits = {leave: name for name, (_, leave) in numbers.items() if leave}
        self._alone = {name for name, (_, leave) in numbers.items() if not leave}
        self._entered: dict[int, tuple[str, int, tuple[int, ...]]] = {}

    @property
    def names(self) -> frozenset[str]:
        """The names of the calls that are traced."""
        return frozenset(self._numbers)

    def end(self, names: Iterable[str]) -> None:
        """These calls are not traced any more."""
        for name in names:
            self._numbers.pop(name, None)

    def returned(self, time_ns: int, record: bytes) -> Call | None:
        """The call that this record of a tracepoint ends; None where it ends none, or one that failed."""
        if len(record) < _ARGUMENTS + _ONE.size:
            return None
        pid, tid, _, _ = _SAMPLE.unpack_from(record, 8)
        number = _COMMON_TYPE.unpack_from(record, _RAW)[0]
        if (name := self._entries.get(number)) is not None:
            layout = _LAYOUTS[name]
            if len(self._entered) >= _KEPT:  # their returns were lost
                self._entered.clear()
            if len(record) < _ARGUMENTS + layout.size:
                return None
            arguments = layout.unpack_from(record, _ARGUMENTS)
            if name in self._alone:
                return Call(name, pid, time_ns, time_ns, arguments, 0)
            self._entered[tid] = name, time_ns, arguments
            return None
        called = self._entered.pop(tid, None)
        result: int = _ONE.unpack_from(record, _ARGUMENTS)[0]
        if called is None or called[0] != self._exits.get(number):
            return None
        name, entered_ns, arguments = called
        if result >= _ERRORS and result != _DONE_IN_PART.get(name):
            return None
        return Call(name, pid, entered_ns, time_ns, arguments, result)

    def mapped(self, time_ns: int, pid: int, tid: int, start: int, end: int) -> Call | None:
        """The mmap() of a fixed address that has made this mapping, which may be larger: it grows a neighbour; or the
        shmat() over what was there, counted as such a one.

        Of its returns only failures are recorded, as of all calls of mmap() only few are at a fixed address.
        """
        if self._entered.get(tid, ("",))[0] not in ("mmap", "shmat"):
            return None
        name, entered_ns, arguments = self._entered.pop(tid)
        if name == "shmat":
            name, arguments = "mmap", (start, end - start, 0, MAP_FIXED)
        elif not arguments[3] & MAP_FIXED:
            arguments = (start, end - start, *arguments[2:])
        address, length = arguments[:2]
        if not start <= address <= address + length <= end:
            return None
        return Call(name, pid, entered_ns, time_ns, arguments, address)


MREMAP_FIXED, MREMAP_DONTUNMAP = 2, 4
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
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
_KCMP_VM = 1


class SharedSpaces:
    """Groups of pids that share one address space.

    Args:
        new_task: the id of the tracepoint task_newtask, None where it is not permitted.
    """

    def __init__(self, new_task: int | None = None) -> None:
        self._new_task = new_task
        self._groups: dict[int, frozenset[int]] = {}
        self._joins: list[tuple[int, int]] = []
        self._born: dict[int, tuple[int, int]] = {}

    @property
    def complete(self) -> bool:
        """Whether every birth of a process that shares memory is known."""
        return self._new_task is not None

    def joins(self) -> list[tuple[int, int]]:
        """The processes that were found to share memory since the last call, each with one that it shares it with."""
        joins, self._joins = self._joins, []
        return joins

    def of(self, pid: int) -> Iterable[int]:
        """The pids that share this process's address space, itself included."""
        return self._groups.get(pid, (pid,))

    def forked(self, pid: int, ppid: int, parent_thread: int) -> None:
        """Notes that a thread of process `ppid` has started process `pid`."""
        self.left(pid)
        if self._new_task is not None:
            if len(self._born) >= _KEPT:  # the records that should have followed them were lost
                self._born.clear()
            self._born[parent_thread] = (pid, ppid)
        elif same_memory(pid, ppid):
            self.joined(pid, ppid)

    def sampled(self, thread: int, record: bytes) -> bool:
        """Reads a tracepoint record of that thread; False when it is not a task_newtask record."""
        if len(record) < _RAW + _COMMON_TYPE.size or _COMMON_TYPE.unpack_from(record, _RAW)[0] != self._new_task:
            return False
        born = self._born.pop(thread, None)
        flags = _ONE.unpack_from(record, _FLAGS_AT)[0] if len(record) >= _FLAGS_AT + _ONE.size else 0
        if born is not None and flags & (_CLONE_VM | _CLONE_THREAD) == _CLONE_VM:
            self.joined(*born)
        return True

    def lost(self) -> None:
        """Records were lost: a birth that comes now belongs to none of the processes that started before."""
        self._born.clear()

    def joined(self, pid: int, other: int) -> None:
        """Notes that two processes share one address space."""
        self._joins.append((pid, other))
        group = frozenset({pid, *self.of(other), other})
        self._groups.update(dict.fromkeys(group, group))

    def left(self, pid: int) -> None:
        """Notes that a process has ended, or that execve() gave it an address space of its own."""
        group = self._groups.pop(pid, None)
        if group is not None:
            rest = group - {pid}
            for other in rest:
                self._groups[other] = rest
            if len(rest) == 1:
                self._groups.pop(*rest)


def same_memory(pid: int, other: int) -> bool:
    """True when kcmp(2) says that both share memory; False where it is not permitted or one of them has ended."""
    return libc.syscall(libc.number_of(272, x86_64=312), pid, other, _KCMP_VM) == 0


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
#: Advice that brings pages: MADV_POPULATE_READ, _WRITE
_POPULATING = (22, 23)
#: Advice that unmaps pages of files, which may stay in the page cache: MADV_COLD, MADV_PAGEOUT
_RECLAIMING = (20, 21)
#: MADV_DONTNEED, _REMOVE, _DONTNEED_LOCKED, _GUARD_INSTALL; MADV_FREE
_ADVICE = {4: LOSS_DISCARDED, 9: LOSS_DISCARDED, 24: LOSS_DISCARDED, 102: LOSS_DISCARDED, 8: LOSS_LAZILY_FREED}


class ContentLosses:
    """Collects the rows of all processes.

    Args:
        shared: which processes share one address space: all of them get a row.
    """

    def __init__(self, shared: SharedSpaces) -> None:
        self._shared = shared
        self._rows: list[Row] = []
        self._born: dict[int, tuple[int, int, int]] = {}  # pid -> time, event, parent
        self._breaks: dict[int, int] = {}  # pid -> where its heap ends, in whole pages
        self._segments: dict[tuple[int, int], int] = {}  # pid, start of a segment of shmat() -> its length
        self._lost_until = 0  # until when calls of all processes may be lacking

    def __bool__(self) -> bool:
        """Whether rows wait."""
        return bool(self._rows or self._born)

    def called(self, call: Call) -> None:
        """Adds what a call has taken away or moved."""
        if call.name == "munmap":
            start, length = call.arguments
            self._lost(call, LOSS_UNMAPPED, start, length)
        elif call.name == "mremap":
            self._moved(call)
        elif call.name == "madvise":
            start, length, advice = call.arguments
            if event := _ADVICE.get(advice & 0xFFFF_FFFF):
                self._lost(call, event, start, length)
            elif advice & 0xFFFF_FFFF in _POPULATING:
                self._populated(call, start, length)
            elif advice & 0xFFFF_FFFF in _RECLAIMING:  # a folio of which it is a part is split, and unmapped as a whole
                low, high = max(start - LARGEST_FOLIO, 0), min(start + pages(length) + LARGEST_FOLIO, END)
                self._add(call.entered_ns, call.pid, LOSS_PERHAPS_UNMAPPED, low, high)
        elif call.name in ("mlock", "mlock2"):
            self._populated(call, *call.arguments[:2])
        elif call.name == "mlockall":
            self._populated(call, 0, END)
        elif call.name == "process_madvise":
            advice = call.arguments[3] & 0xFFFF_FFFF
            if advice in _ADVICE and call.result:  # its ranges are in the caller's memory
                self._add(call.entered_ns, call.pid, LOSS_PERHAPS, 0, END)
            elif advice in _POPULATING:
                self._populated(call, 0, END)
        elif call.name == "shmdt":
            start = call.arguments[0]
            if length := self._segments.pop((call.pid, start), 0):
                self._lost(call, LOSS_UNMAPPED, start, length)
            else:  # how much lay there is not known
                self._add(call.returned_ns, call.pid, LOSS_PERHAPS, 0, END)
        elif call.name == "brk":
            self._broken(call)
        elif call.name == "mmap":
            start, length, _, flags = call.arguments
            if flags & MAP_FIXED:
                self._lost(call, LOSS_REPLACED, start, length)
            if flags & MAP_POPULATE:
                self._populated(call, start, length)

    def _populated(self, call: Call, start: int, length: int) -> None:
        self._add(call.returned_ns, call.pid, LOSS_POPULATED, start, min(start + pages(length), END))

    def locked(self, time_ns: int, pid: int, start: int, end: int) -> None:
        """A process mapped something that is locked from the beginning: MAP_LOCKED, or after mlockall(MCL_FUTURE)."""
        self._add(time_ns, pid, LOSS_POPULATED, start, end)

    def attached(self, pid: int, start: int, end: int) -> None:
        """A process mapped a segment of System V's shared memory."""
        if len(self._segments) >= _KEPT:
            self._segments.clear()
        self._segments[pid, start] = end - start

    def _broken(self, call: Call) -> None:
        """brk() gives the present end where it fails, and where it is asked for none."""
        before, now = self._breaks.get(call.pid, 0), call.result
        if now == call.arguments[0] and pages(now) < before:
            self._lost(call, LOSS_BRK, pages(now), before - pages(now))
        self._breaks.update(dict.fromkeys(self._shared.of(call.pid), pages(now)))

    def heap(self, pid: int, end: int) -> None:
        """The heap of a process that is already running ends there, at 0 without one."""
        self._breaks.setdefault(pid, end)

    def _moved(self, call: Call) -> None:
        start, old, new, flags = call.arguments
        old, new = pages(old), pages(new)
        if new < old:
            self._lost(call, LOSS_UNMAPPED, start + new, old - new)
        if call.result == start:
            return
        if flags & MREMAP_FIXED:
            self._lost(call, LOSS_REPLACED, call.result, new)
        # of 0 bytes, it maps shared memory at a second place
        self._lost(call, LOSS_MOVED, start, min(old, new), to=call.result)

    def _lost(self, call: Call, event: int, start: int, length: int, to: int = 0) -> None:
        end = min(start + pages(length), END)
        if start < end:
            self._add(call.entered_ns, call.pid, event, start, end, to)

    def _add(self, time_ns: int, pid: int, event: int, start: int, end: int, to: int = 0) -> None:
        self._rows += [(time_ns, sharer, event, start, end, to, 0) for sharer in self._shared.of(pid)]

    def traced(self, calls: Collection[str]) -> tuple[str, ...]:
        """The words of those kinds of losses of which every one is recorded, where these calls are traced."""
        known = [event for event, needed in _NEEDED.items() if needed <= set(calls)]
        births = [LOSS_FORKED, LOSS_SHARES] if self._shared.complete else []
        return tuple(LOSS_EVENTS[event] for event in sorted([*known, *births]))

    def shares(self, time_ns: int, pid: int, other: int) -> None:
        """A process that is already running shares the memory of another one."""
        self._rows.append((time_ns, pid, LOSS_SHARES, 0, END, 0, other))

    def forked(self, time_ns: int, pid: int, ppid: int) -> None:
        """A process was started by another one. Called after SharedSpaces.forked()."""
        event = LOSS_FORKED if self._shared.complete else LOSS_PERHAPS_FORKED
        self._born[pid] = (time_ns, event, ppid)
        if ppid in self._breaks:
            self._breaks[pid] = self._breaks[ppid]

    def executed(self, time_ns: int, pid: int) -> None:
        """A process executed another program."""
        self._breaks.pop(pid, None)
        self._rows.append((time_ns, pid, LOSS_EXECUTED, 0, END, 0, 0))

    def ended(self, pid: int, time_ns: int = END) -> None:
        """A process has ended; END: it is not traced any more."""
        self._breaks.pop(pid, None)
        if time_ns < self._lost_until:
            self._rows.append((time_ns, pid, LOSS_PERHAPS, 0, END, 0, 0))

    def lost(self, time_ns: int, pids: Iterable[int], *, until_ns: int = 0) -> None:
        """Records of these processes were lost.

        Args:
            time_ns: from then on. pids: the processes.
            until_ns: until then those of all processes may be; who is live then is given in a second call.
        """
        self._lost_until = max(self._lost_until, until_ns)
        self._rows += [(time_ns, pid, LOSS_PERHAPS, 0, END, 0, 0) for pid in pids]

    def births_lost(self) -> None:
        """Records of births were lost: whether those that have just come share memory is not known."""
        self._born = {
            pid: (at, LOSS_PERHAPS_FORKED if event == LOSS_FORKED else event, parent)
            for pid, (at, event, parent) in self._born.items()
        }

    def give(self, watermark: int, *, final: bool) -> list[Row]:
        """The rows up to shortly before the watermark in order of time; with `final` all."""
        for pid, other in self._shared.joins():
            if pid in self._born:
                time_ns, _, ppid = self._born[pid]
                self._born[pid] = (time_ns, LOSS_SHARES, ppid if other == ppid else other)
        until = END if final else watermark - _BIRTH_NS
        born = [(at, pid, event, 0, END, 0, other) for pid, (at, event, other) in self._born.items() if at <= until]
        for row in born:
            del self._born[row[1]]
        due = sorted((row for row in self._rows + born if row[0] <= until), key=lambda row: row[0])
        self._rows = [row for row in self._rows if row[0] > until]
        return due
