"""What munmap() and mremap() change in an address space: perf itself does not report them.

Without this a growing Python list (realloc() calls mremap()) has faults at addresses for which no mapping is known.
Source: man 2 mremap.
"""

from __future__ import annotations

import os

from wstrace.schema import KIND_ANON, KIND_SHIFT, MAP_READ, MAP_WRITE, SPACE_MAP, SPACE_UNMAP
from wstrace_page_faults.linux.calls import Call

MREMAP_FIXED, MREMAP_DONTUNMAP = 2, 4
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_KEPT = 4096
_ANON = MAP_READ | MAP_WRITE | KIND_ANON << KIND_SHIFT

Row = tuple[int, ...]  # a row of ADDRESS_SPACE


class Remaps:
    """Makes rows of calls, and remembers mappings, so that a moved one keeps its file.

    A call takes effect only once it has returned without an error: munmap() of a range that is not mapped changes
    nothing. What it unmapped counts from its entry on, because another thread may have mapped the same place in
    between.

    Args:
        anon: the code of the name `[anon]`.
    """

    def __init__(self, anon: int) -> None:
        self._anon = anon
        self._mapped: dict[int, list[Row]] = {}

    def rows(self, call: Call) -> list[Row]:
        """The ADDRESS_SPACE rows of a call."""
        if call.name == "munmap":
            start, length = call.arguments
            return [_unmap(call, start, length)]
        return self._moved(call) if call.name == "mremap" else []

    def _moved(self, call: Call) -> list[Row]:
        start, old, new, flags = call.arguments
        old, new, now = pages(old), pages(new), call.result
        rows = []
        if now == start:  # it grew or shrank in place
            if new < old:
                rows = [_unmap(call, start + new, old - new)]
        elif old and not flags & MREMAP_DONTUNMAP:
            rows = [_unmap(call, start, old)]
        end = now + new
        for known in reversed(self._mapped.get(call.pid, ())):
            if known[3] <= start < known[4]:
                offset = known[5] + start - known[3] if known[7] or known[8] else 0
                rows.append((call.returned_ns, call.pid, SPACE_MAP, now, end, offset, *known[6:]))
                break
        else:
            rows.append((call.returned_ns, call.pid, SPACE_MAP, now, end, 0, self._anon, 0, 0, _ANON))
        return rows

    def detached(self, call: Call) -> Call | None:
        """shmdt() as the munmap() that it is; None where the mapping of that address is not known."""
        for known in reversed(self._mapped.get(call.pid, ())):
            if known[3] == call.arguments[0]:
                return call._replace(name="munmap", arguments=(known[3], known[4] - known[3]))
        return None

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


def pages(length: int) -> int:
    """The length in bytes, rounded up to whole pages."""
    return -(-length // _PAGE) * _PAGE


def _unmap(call: Call, start: int, length: int) -> Row:
    end = min(start + pages(length), (1 << 64) - 1)
    return (call.entered_ns, call.pid, SPACE_UNMAP, start, end, 0, 0, 0, 0, 0)
