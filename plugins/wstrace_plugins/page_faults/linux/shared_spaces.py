"""Which processes share one address space: clone() with CLONE_VM but no CLONE_THREAD, and vfork() until its exec.

PERF_RECORD_FORK does not report it. The tracepoint task_newtask does, right after the FORK record and on the same
thread (copy_process() in kernel/fork.c); its filter leaves out threads, and tasks with memory of their own. Where it is
not permitted, kcmp(2) answers for processes that are still alive.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from wstrace_plugins.os.linux import libc

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
