"""System calls of the traced threads, from tracepoints of their entries and exits: those that succeeded; and what
munmap() and mremap() change in an address space, which perf itself does not report.

Without that a growing list (realloc() calls mremap()) has faults at addresses for which no mapping is known.

Source: /sys/kernel/tracing/events/syscalls/sys_{enter,exit}_*/format.
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wstrace.schema import KIND_ANON, KIND_SHIFT, MAP_READ, MAP_WRITE, SPACE_MAP, SPACE_UNMAP

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
        shmat() over what was there, told as such a one.

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
#: The most mappings of a process that are remembered: as many as the kernel permits by default (vm.max_map_count).
_MOST = 1 << 16
#: Of what was replaced so much is remembered: a call that has entered before may still have moved it.
_REPLACED = 64
#: Bytes of the largest folio of a file: as many as a page table maps (MAX_PAGECACHE_ORDER in linux/pagemap.h).
LARGEST_FOLIO = _PAGE * _PAGE // 8
_ANON = MAP_READ | MAP_WRITE | KIND_ANON << KIND_SHIFT

Row = tuple[int, ...]  # a row of ADDRESS_SPACE


class Piece(NamedTuple):
    """The addresses [start, end) of what a row has mapped."""

    start: int
    end: int
    row: Row

    def moved(self, call: Call, by: int, end: int) -> Row:
        """The row of this piece at addresses that differ by so much, and up to `end`, where it may have grown.

        It is of the process that called: what a child has from its parent still has the parent's row here.
        """
        _, _, _, start, _, offset, *rest = self.row
        offset += self.start - start if self.row[7] or self.row[8] else 0
        return (call.returned_ns, call.pid, SPACE_MAP, self.start + by, end, offset, *rest)


class Remaps:
    """Makes rows of calls, and remembers what is mapped where, so that a mapping that is moved keeps its file.

    A call takes effect only once it has returned without an error: munmap() of a range that is not mapped changes
    nothing. What it unmapped counts from its entry on, because another thread may have mapped the same place in
    between.

    Args:
        anon: the code of the name `[anon]`.
    """

    def __init__(self, anon: int) -> None:
        self._anon = anon
        self._mapped: dict[int, list[Piece]] = {}  # in order, none over another
        self._replaced: dict[int, deque[tuple[int, Piece]]] = {}  # when, and what

    def rows(self, call: Call) -> list[Row]:
        """The ADDRESS_SPACE rows of a call."""
        if call.name == "munmap":
            start, length = call.arguments
            return [_unmap(call, start, length)]
        return self._moved(call) if call.name == "mremap" else []

    def _moved(self, call: Call) -> list[Row]:
        start, old, new, flags = call.arguments
        old, new, by = pages(old), pages(new), call.result - start
        rows: list[Row] = []
        if by == 0:  # it grew or shrank in place
            rows += [_unmap(call, start + new, old - new)] * (new < old)
        elif old and not flags & MREMAP_DONTUNMAP:
            rows.append(_unmap(call, start, old))
        moves_until = start + (min(old, new) or _PAGE)  # of 0 bytes, it maps shared memory at a second place
        at, gaps = start, list[tuple[int, int]]()
        for piece in self._pieces(call.pid, start, moves_until, call.entered_ns):
            gaps += [(at, piece.start)] * (at < piece.start)
            at = piece.end
            grown = start + new if at == moves_until else at
            rows.append(piece.moved(call, by, grown + by))
        gaps += [(at, start + new)] * (at < moves_until)
        rest = (self._anon, 0, 0, _ANON)
        return rows + [(call.returned_ns, call.pid, SPACE_MAP, low + by, high + by, 0, *rest) for low, high in gaps]

    def _pieces(self, pid: int, start: int, end: int, time_ns: int) -> list[Piece]:
        """What was mapped at these addresses at a time, as far as it is known; in order."""
        now = [piece for piece in self._overlapped(pid, start, end) if piece.row[0] <= time_ns]
        then = [piece for at, piece in self._replaced.get(pid, ()) if at > time_ns >= piece.row[0]]
        found: list[Piece] = []
        for piece in sorted([*now, *then]):
            start = max(start, piece.start)
            if start < (until := min(piece.end, end)):
                found.append(Piece(start, until, piece.row))
                start = until
        return found

    def _overlapped(self, pid: int, start: int, end: int) -> list[Piece]:
        pieces = self._mapped.get(pid, [])
        return pieces[slice(*_places(pieces, start, end))]

    def detached(self, call: Call) -> Call | None:
        """shmdt() as the munmap() that it is; None where the mapping of that address is not known."""
        start = call.arguments[0]
        for piece in self._overlapped(call.pid, start, start + 1):
            if piece.row[3] == start:
                return call._replace(name="munmap", arguments=(start, piece.row[4] - start))
        return None

    def changed(self, row: Row) -> None:
        """Remembers what a row tells: a mapping, or that it is there no more. What was mapped after it stays."""
        time_ns, pid, event, start, end = row[:5]
        pieces = self._mapped.setdefault(pid, [])
        first, past = _places(pieces, start, end)
        new: list[Piece] = []
        at = start
        for piece in pieces[first:past]:
            if piece.row[0] > time_ns:
                new += [Piece(at, piece.start, row)] * (event != SPACE_UNMAP and at < piece.start)
                new.append(piece)
                at = piece.end
                continue
            self._replaced.setdefault(pid, deque(maxlen=_REPLACED)).append((time_ns, piece))
            new += [piece._replace(end=start)] * (piece.start < start)
            if piece.end > end:
                new += [Piece(at, end, row)] * (event != SPACE_UNMAP and at < end)
                new.append(piece._replace(start=end))
                at = end
        new += [Piece(at, end, row)] * (event != SPACE_UNMAP and at < end)
        pieces[first:past] = new
        if len(pieces) > _MOST:
            del pieces[: _MOST // 2]

    def forked(self, pid: int, ppid: int) -> None:
        """Gives a child its parent's mappings."""
        self._mapped[pid] = list(self._mapped.get(ppid, ()))

    def forget(self, pid: int) -> None:
        """Forgets the mappings of a process that has ended or has executed another program."""
        self._mapped.pop(pid, None)
        self._replaced.pop(pid, None)


def _places(pieces: list[Piece], start: int, end: int) -> tuple[int, int]:
    """The first and the one past the last of the pieces in order that have some of these addresses."""
    first = bisect_right(pieces, start, key=lambda piece: piece.end)
    return first, bisect_left(pieces, end, lo=first, key=lambda piece: piece.start)


def pages(length: int) -> int:
    """The length in bytes, rounded up to whole pages."""
    return -(-length // _PAGE) * _PAGE


def _unmap(call: Call, start: int, length: int) -> Row:
    end = min(start + pages(length), (1 << 64) - 1)
    return (call.entered_ns, call.pid, SPACE_UNMAP, start, end, 0, 0, 0, 0, 0)
