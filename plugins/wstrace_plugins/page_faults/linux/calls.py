"""System calls of the traced threads, from tracepoints of their entries and exits: those that succeeded.

Source: /sys/kernel/tracing/events/syscalls/sys_{enter,exit}_*/format.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

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

    def copy(self) -> Calls:
        """Another one, to read ahead with."""
        ahead = Calls(self._numbers)
        ahead._entered = dict(self._entered)
        return ahead

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
