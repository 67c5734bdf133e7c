"""What takes the content of addresses away or moves it, as rows of CONTENT_LOSS.

A row's time is that of a call's entry: before it nobody but the caller knows what the call will take away, and after it
another thread may have mapped or touched the same place again.

Which processes share one address space, by clone() with CLONE_VM but no CLONE_THREAD, or vfork() until its exec,
PERF_RECORD_FORK does not report. The tracepoint task_newtask does, right after the FORK record and on the same thread
(copy_process() in kernel/fork.c). Where it is not permitted, kcmp(2) answers for processes that are still alive.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable

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
)
from wstrace_plugins.os.linux import libc
from wstrace_plugins.page_faults.linux.calls import LARGEST_FOLIO, MAP_FIXED, MAP_POPULATE, MREMAP_FIXED, Call, pages

#: The offsets of the raw data in a SAMPLE of type TID|TIME|RAW, and of clone_flags, which is at byte 32 of that data.
_RAW, _FLAGS_AT = 28, 28 + 32
_COMMON_TYPE, _FLAGS = struct.Struct("<H"), struct.Struct("<Q")
_CLONE_VM, _CLONE_THREAD = 0x100, 0x10000
_KCMP_VM = 1
_KEPT = 4096


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
    def told(self) -> bool:
        """Whether every birth of a process that shares memory is told."""
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
        flags = _FLAGS.unpack_from(record, _FLAGS_AT)[0] if len(record) >= _FLAGS_AT + _FLAGS.size else 0
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


END = (1 << 64) - 1
#: How long a birth may wait to be told as one that shares memory. The tracepoint follows the record of the fork on the
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

Row = tuple[int, ...]  # a row of CONTENT_LOSS


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
        told = [event for event, needed in _NEEDED.items() if needed <= set(calls)]
        births = [LOSS_FORKED, LOSS_SHARES] if self._shared.told else []
        return tuple(LOSS_EVENTS[event] for event in sorted([*told, *births]))

    def shares(self, time_ns: int, pid: int, other: int) -> None:
        """A process that is already running shares the memory of another one."""
        self._rows.append((time_ns, pid, LOSS_SHARES, 0, END, 0, other))

    def forked(self, time_ns: int, pid: int, ppid: int) -> None:
        """A process was started by another one. Called after SharedSpaces.forked()."""
        event = LOSS_FORKED if self._shared.told else LOSS_PERHAPS_FORKED
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
        """Records of births were lost: whether those that have just been told share memory is not known."""
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
