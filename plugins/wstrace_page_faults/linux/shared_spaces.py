"""Which processes share one address space: clone() with CLONE_VM and without CLONE_THREAD, and vfork() until its exec.

PERF_RECORD_FORK does not say it. The tracepoint task_newtask does, right after it and on the same thread
(copy_process() in kernel/fork.c); where it may not be used kcmp(2) tells it of processes that still live.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from wstrace_os.linux import libc

#: of a SAMPLE of type TID|TIME|RAW: 20 bytes and the size, then common_type ... pid, comm, clone_flags at 32
_RAW, _FLAGS_AT = 28, 28 + 32
_COMMON_TYPE, _FLAGS = struct.Struct("<H"), struct.Struct("<Q")
_CLONE_VM, _CLONE_THREAD = 0x100, 0x10000
_KCMP_VM = 1
_KEPT = 4096


class SharedSpaces:
    """Groups of pids with one address space.

    Args:
        new_task: the id of task_newtask, None where it may not be used.
    """

    def __init__(self, new_task: int | None = None) -> None:
        self._new_task = new_task
        self._groups: dict[int, frozenset[int]] = {}
        self._born: dict[int, tuple[int, int]] = {}

    def of(self, pid: int) -> Iterable[int]:
        """The processes with the address space of that one, itself included."""
        return self._groups.get(pid, (pid,))

    def forked(self, pid: int, ppid: int, parent_thread: int) -> None:
        """A process was started by a thread of another one."""
        self.left(pid)
        if self._new_task is not None:
            if len(self._born) >= _KEPT:  # their other records were lost
                self._born.clear()
            self._born[parent_thread] = (pid, ppid)
        elif same_memory(pid, ppid):
            self.joined(pid, ppid)

    def sampled(self, thread: int, record: bytes) -> bool:
        """Reads a tracepoint's record of that thread; False when it is of another one than task_newtask."""
        if len(record) < _RAW + _COMMON_TYPE.size or _COMMON_TYPE.unpack_from(record, _RAW)[0] != self._new_task:
            return False
        born = self._born.pop(thread, None)
        flags = _FLAGS.unpack_from(record, _FLAGS_AT)[0] if len(record) >= _FLAGS_AT + _FLAGS.size else 0
        if born is not None and flags & (_CLONE_VM | _CLONE_THREAD) == _CLONE_VM:
            self.joined(*born)
        return True

    def joined(self, pid: int, other: int) -> None:
        """They have one address space."""
        group = frozenset({pid, *self.of(other), other})
        self._groups.update(dict.fromkeys(group, group))

    def left(self, pid: int) -> None:
        """It has ended, or has an address space of its own by execve()."""
        group = self._groups.pop(pid, None)
        if group is not None:
            rest = group - {pid}
            for other in rest:
                self._groups[other] = rest
            if len(rest) == 1:
                self._groups.pop(*rest)


def same_memory(pid: int, other: int) -> bool:
    """True when kcmp(2) says so; False where it is not allowed or one of them is gone."""
    return libc.syscall(libc.number_of(272, x86_64=312), pid, other, _KCMP_VM) == 0
