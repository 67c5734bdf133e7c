"""munmap() and mremap() of the traced threads, where tracefs may be read: perf itself does not report them.

Without this a growing Python list (realloc() calls mremap()) has faults at addresses for which no mapping is known.
Source: /sys/kernel/tracing/events/syscalls/sys_{enter,exit}_*/format, man 2 mremap.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from wstrace.schema import KIND_ANON, KIND_SHIFT, MAP_READ, MAP_WRITE, SPACE_MAP, SPACE_UNMAP

#: A SAMPLE of type TID|TIME|RAW: pid, tid, time, size; then 16 bytes (common_type ... __syscall_nr) and u64 arguments.
_SAMPLE = struct.Struct("<IIQI")
_COMMON_TYPE = struct.Struct("<H")
_TWO, _FOUR, _ONE = struct.Struct("<QQ"), struct.Struct("<QQQQ"), struct.Struct("<Q")
_RAW, _ARGUMENTS = 8 + _SAMPLE.size, 8 + _SAMPLE.size + 16
_MREMAP_DONTUNMAP = 4
_ERRORS = (1 << 64) - 4096  # a return value from here on is -errno
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_KEPT = 4096
_ANON = MAP_READ | MAP_WRITE | KIND_ANON << KIND_SHIFT

Row = tuple[int, ...]  # a row of ADDRESS_SPACE


class Call(NamedTuple):
    """A call that has not returned yet: the tracepoint of its entry, its time, and its arguments."""

    number: int
    time_ns: int
    arguments: tuple[int, ...]


class Remaps:
    """Decodes the tracepoints' records, and remembers mappings, so that a moved one keeps its file.

    A call takes effect only once it has returned without an error: munmap() of a range that is not mapped changes
    nothing. What it unmapped counts from its entry on, because another thread may have mapped the same place in
    between.

    Args:
        numbers: the ids of munmap's entry and exit and of mremap's entry and exit, as in tracepoints.SYSCALLS.
        anon: the code of the name `[anon]`.
    """

    def __init__(self, numbers: Sequence[int], anon: int) -> None:
        self._munmap, munmap_exit, self._mremap, mremap_exit = numbers
        self._arguments = {self._munmap: _TWO, self._mremap: _FOUR}
        self._entry_of = {munmap_exit: self._munmap, mremap_exit: self._mremap}
        self._anon = anon
        self._called: dict[int, Call] = {}
        self._mapped: dict[int, list[Row]] = {}

    def rows(self, time_ns: int, record: bytes) -> list[Row]:
        """The ADDRESS_SPACE rows of one record; none before a call has returned."""
        if len(record) < _ARGUMENTS + _ONE.size:
            return []
        pid, tid, _, _ = _SAMPLE.unpack_from(record, 8)
        number = _COMMON_TYPE.unpack_from(record, _RAW)[0]
        layout = self._arguments.get(number)
        if layout is not None:
            if len(self._called) >= _KEPT:
                self._called.clear()
            if len(record) >= _ARGUMENTS + layout.size:
                self._called[tid] = Call(number, time_ns, layout.unpack_from(record, _ARGUMENTS))
            return []
        call = self._called.pop(tid, None)
        result: int = _ONE.unpack_from(record, _ARGUMENTS)[0]
        if call is None or call.number != self._entry_of.get(number) or result >= _ERRORS:
            return []
        if call.number == self._munmap:
            start, length = call.arguments
            return [_unmap(call.time_ns, pid, start, length)]
        return self._moved(time_ns, pid, call, result)

    def _moved(self, time_ns: int, pid: int, call: Call, now: int) -> list[Row]:
        start, old, new, flags = call.arguments
        old, new = _pages(old), _pages(new)
        rows = []
        if now == start:  # it grew or shrank in place
            if new < old:
                rows = [_unmap(call.time_ns, pid, start + new, old - new)]
        elif old and not flags & _MREMAP_DONTUNMAP:
            rows = [_unmap(call.time_ns, pid, start, old)]
        end = now + new
        for known in reversed(self._mapped.get(pid, ())):
            if known[3] <= start < known[4]:
                offset = known[5] + start - known[3] if known[7] or known[8] else 0
                rows.append((time_ns, pid, SPACE_MAP, now, end, offset, *known[6:]))
                break
        else:
            rows.append((time_ns, pid, SPACE_MAP, now, end, 0, self._anon, 0, 0, _ANON))
        return rows

    def mapped(self, row: Row) -> None:
        """Remembers a mapping, up to a few thousand per process."""
        rows = self._mapped.setdefault(row[1], [])
        if len(rows) >= _KEPT:
            del rows[: _KEPT // 2]
        rows.append(row)

    def forked(self, pid: int, ppid: int) -> None:
        """Gives a child its parent's mappings."""
        self._mapped[pid] = list(self._mapped.get(ppid, ()))

    def forget(self, pid: int) -> None:
        """Forgets the mappings of a process that has ended or has executed another program."""
        self._mapped.pop(pid, None)


def _pages(length: int) -> int:
    return -(-length // _PAGE) * _PAGE


def _unmap(time_ns: int, pid: int, start: int, length: int) -> Row:
    return (time_ns, pid, SPACE_UNMAP, start, min(start + _pages(length), (1 << 64) - 1), 0, 0, 0, 0, 0)
