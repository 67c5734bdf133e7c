"""System calls of the traced threads, from tracepoints of their entries and exits: those that succeeded.

Source: /sys/kernel/tracing/events/syscalls/sys_{enter,exit}_*/format.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

#: A SAMPLE of type TID|TIME|RAW: pid, tid, time, size; then 16 bytes (common_type ... __syscall_nr) and u64 arguments.
_SAMPLE = struct.Struct("<IIQI")
_COMMON_TYPE = struct.Struct("<H")
_ONE = struct.Struct("<Q")
_RAW, _ARGUMENTS = 8 + _SAMPLE.size, 8 + _SAMPLE.size + 16
_ERRORS = (1 << 64) - 4096  # a return value from here on is -errno
_KEPT = 4096

#: The arguments of each call that is read, which tell what it does to memory.
ARGUMENTS = {"munmap": 2, "mremap": 4}
_LAYOUTS = {name: struct.Struct(f"<{n}Q") for name, n in ARGUMENTS.items()}


class Call(NamedTuple):
    """A call that has returned without an error: its times of entry and return, arguments and result."""

    name: str
    pid: int
    entered_ns: int
    returned_ns: int
    arguments: tuple[int, ...]
    result: int


class Calls:
    """Pairs the entries of calls with their returns.

    Args:
        numbers: the ids of the tracepoints: name of the call -> (its entry, its exit).
    """

    def __init__(self, numbers: Mapping[str, tuple[int, int]]) -> None:
        #: The names of the calls.
        self.names = frozenset(numbers)
        self._entries = {entry: name for name, (entry, _) in numbers.items()}
        self._exits = {leave: name for name, (_, leave) in numbers.items()}
        self._entered: dict[int, tuple[str, int, tuple[int, ...]]] = {}

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
            if len(record) >= _ARGUMENTS + layout.size:
                self._entered[tid] = name, time_ns, layout.unpack_from(record, _ARGUMENTS)
            return None
        called = self._entered.pop(tid, None)
        result: int = _ONE.unpack_from(record, _ARGUMENTS)[0]
        if called is None or called[0] != self._exits.get(number) or result >= _ERRORS:
            return None
        name, entered_ns, arguments = called
        return Call(name, pid, entered_ns, time_ns, arguments, result)
