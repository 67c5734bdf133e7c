"""eBPF: an assembler; maps, programs and the ring buffer that a program writes into, by bpf(2).

Nothing is opened when this is imported. Source: Documentation/bpf/standardization/instruction-set.rst,
include/uapi/linux/bpf.h (union bpf_attr), kernel/bpf/ringbuf.c, man 2 bpf.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace_plugins.os.linux import libc, procfs
from wstrace_plugins.page_faults.linux import perf_event as perf

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: sizes of a load or store
BYTE, WORD, DOUBLE = 0x10, 0x00, 0x18
_ALU64, _JUMP, _LDX, _ST, _STX = 0x07, 0x05, 0x61, 0x62, 0x63
_ALU = {"add": 0x00, "sub": 0x10, "mul": 0x20, "or": 0x40, "and": 0x50, "lsh": 0x60, "rsh": 0x70, "xor": 0xA0,
        "mov": 0xB0}  # fmt: skip
_CONDITIONS = {"==": 0x10, ">": 0x20, ">=": 0x30, "&": 0x40, "!=": 0x50, "<": 0xA0, "<=": 0xB0}
_REGISTER = 8  # the source operand is a register
_CALL, _EXIT, _JUMP_ALWAYS, _LOAD_64 = 0x85, 0x95, 0x05, 0x18
_MAP_FD, _FUNCTION = 1, 4
_ONE = struct.Struct("<BBhi")


class Code(NamedTuple):
    """Instructions, 8 bytes each; functions: where the program and the functions that it hands to helpers begin."""

    instructions: bytes
    functions: tuple[int, ...]


class Register(int):
    """A register, which is no number."""


R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, FP = (Register(i) for i in range(11))


class Assembler:
    """Instructions in order. Operands are a Register, or an int: a constant of 32 bits with sign."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int]] = []
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []
        self._functions: list[tuple[int, str]] = []
        self._names = 0

    def name(self, stem: str) -> str:
        """A label that nothing else has."""
        self._names += 1
        return f"{stem}#{self._names}"

    def _add(self, code: int, target: int = 0, source: int = 0, offset: int = 0, constant: int = 0) -> None:
        self._code.append((code, target | source << 4, offset, constant - (1 << 32) * (constant >= 1 << 31)))

    def op(self, operation: str, target: Register, operand: int) -> None:
        """target = target OPERATION operand, in 64 bits; `mov` sets it."""
        if isinstance(operand, Register):
            self._add(_ALU[operation] | _REGISTER | _ALU64, target, operand)
        elif -(1 << 31) <= operand < 1 << 31:
            self._add(_ALU[operation] | _ALU64, target, 0, 0, operand)
        else:
            raise ValueError(f"{operand:#x} is no constant of 32 bits: load64() takes it")

    def mov(self, target: Register, operand: int, plus: int = 0) -> None:
        """target = operand + plus."""
        self.op("mov", target, operand)
        if plus:
            self.op("add", target, plus)

    def load64(self, target: Register, value: int, source: int = 0) -> None:
        """target = value, a constant of 64 bits; source: what it is, where it is no number."""
        self._add(_LOAD_64, target, source, 0, value & 0xFFFFFFFF)
        self._add(0, 0, 0, 0, value >> 32 & 0xFFFFFFFF)

    def map(self, target: Register, fd: int) -> None:
        """target = the map with that descriptor."""
        self.load64(target, fd, _MAP_FD)

    def load(self, target: Register, base: Register, offset: int = 0, size: int = DOUBLE) -> None:
        """target = memory at base + offset."""
        self._add(_LDX | size, target, base, offset)

    def store(self, base: Register, offset: int, value: int, size: int = DOUBLE) -> None:
        """Memory at base + offset = a register, or a constant with sign."""
        if isinstance(value, Register):
            self._add(_STX | size, base, value, offset)
        else:
            self._add(_ST | size, base, 0, offset, value)

    def label(self, name: str) -> None:
        """Jumps to that name lead here."""
        assert name not in self._labels, name
        self._labels[name] = len(self._code)

    def jump(self, label: str) -> None:
        """Goes on at a label."""
        self._jumps.append((len(self._code), label))
        self._add(_JUMP_ALWAYS)

    def jump_if(self, left: Register, condition: str, right: int, label: str) -> None:
        """Goes on at a label if left CONDITION right, without sign."""
        self._jumps.append((len(self._code), label))
        if isinstance(right, Register):
            self._add(_CONDITIONS[condition] | _REGISTER | _JUMP, left, right)
        else:
            self._add(_CONDITIONS[condition] | _JUMP, left, 0, 0, right)

    def call(self, helper: int) -> None:
        """Calls a helper: R0 = helper(R1 ... R5); R1 to R5 are lost."""
        self._add(_CALL, 0, 0, 0, helper)

    def function(self, target: Register, label: str) -> None:
        """target = the function that begins at a label, for a helper that calls it back."""
        self._functions.append((len(self._code), label))
        self.load64(target, 0, _FUNCTION)

    def exit(self) -> None:
        """Ends the program with R0."""
        self._add(_EXIT)

    def assemble(self) -> Code:
        """The program."""
        code = list(self._code)
        for at, label in self._jumps:
            operation, registers, _, constant = code[at]
            code[at] = (operation, registers, self._labels[label] - at - 1, constant)
        for at, label in self._functions:
            operation, registers, offset, _ = code[at]
            code[at] = (operation, registers, offset, self._labels[label] - at - 1)
        begins = {self._labels[label] for _, label in self._functions}
        return Code(b"".join(_ONE.pack(*one) for one in code), (0, *sorted(begins)))


_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _LOAD, _LOAD_TYPES = 0, 1, 2, 3, 5, 18
HASH, PROGRAM_ARRAY, PERF_EVENT_ARRAY, PER_CPU_ARRAY, LRU_HASH, RING_BUFFER = 1, 3, 4, 6, 9, 27
_PERF_EVENT_PROGRAM = 7
#: the helpers that a program walking user memory needs are for programs with a licence that is GPL-compatible
_LICENCE = b"Dual MIT/GPL"
#: of loading a program that signals interrupt; libbpf makes 5
_ATTEMPTS = 20

_NUMBER = libc.number_of(280, x86_64=321)
_OBJECT_ATTR = struct.Struct("<IIQQQ")
_MAP_ATTR = struct.Struct("<IIIIIII16s28x")
_LOAD_ATTR = struct.Struct("<IIQQIIQII16s8xIIQI4x")
_TYPES_ATTR = struct.Struct("<QQIIII")

_BUSY, _DISCARD, _LENGTH = 1 << 31, 1 << 30, (1 << 30) - 1
_PAGE = 4096


def bpf(command: int, attr: bytes) -> int:
    """Calls bpf(2). Raises OSError."""
    memory = ctypes.create_string_buffer(attr, len(attr))
    result = libc.syscall(_NUMBER, command, ctypes.addressof(memory), len(attr))
    if result < 0:
        raise libc.last_error()
    return result


class _Opened:
    """What has a descriptor; maps and events keep what they use when it is closed."""

    fd = -1

    def close(self) -> None:
        """Closes the descriptor."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Map(_Opened):
    """A map. Keys and values are bytes of the sizes given."""

    def __init__(self, kind: int, key: int, value: int, entries: int, name: bytes) -> None:
        self._value, self.entries = value, entries
        self.fd = bpf(_MAP_CREATE, _MAP_ATTR.pack(kind, key, value, entries, 0, 0, 0, b"wstrace_" + name))
        if kind == PER_CPU_ARRAY:
            self._value = (value + 7 & ~7) * _possible_cpus()

    def get(self, key: bytes) -> bytes | None:
        """The value of that key (of all CPUs, one behind the other); None without one."""
        value = ctypes.create_string_buffer(self._value)
        try:
            self._call(_LOOKUP, key, ctypes.addressof(value))
        except FileNotFoundError:
            return None
        return value.raw

    def set(self, key: bytes, value: bytes) -> None:
        """Sets a value. Raises OSError when the map is full."""
        memory = ctypes.create_string_buffer(value, len(value))
        self._call(_UPDATE, key, ctypes.addressof(memory))

    def delete(self, key: bytes) -> None:
        """Removes a key, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._call(_DELETE, key, 0)

    def _call(self, command: int, key: bytes, value: int) -> None:
        memory = ctypes.create_string_buffer(key, len(key))
        bpf(command, _OBJECT_ATTR.pack(self.fd, 0, ctypes.addressof(memory), value, 0))


class Program(_Opened):
    """A loaded program for perf events. Raises OSError: the kernel refuses it."""

    def __init__(self, code: Code, name: bytes) -> None:
        self._code = ctypes.create_string_buffer(code.instructions, len(code.instructions))
        self._licence, self._name = ctypes.create_string_buffer(_LICENCE), b"wstrace_" + name
        self._functions = code.functions if len(code.functions) > 1 else ()
        types = _types(len(self._functions)) if self._functions else 0
        try:
            self.fd = self._verified(types)
        finally:
            if types:
                os.close(types)

    def _verified(self, types: int) -> int:
        """Loads it, again where a signal has come: the verifier gives up at one (EAGAIN), whoever it is for."""
        code, licence, n = ctypes.addressof(self._code), ctypes.addressof(self._licence), len(self._functions)
        infos = b"".join(struct.pack("<II", begin, _FIRST_FUNCTION + i) for i, begin in enumerate(self._functions))
        memory = ctypes.create_string_buffer(infos)
        attr = _LOAD_ATTR.pack(_PERF_EVENT_PROGRAM, len(self._code) // 8, code, licence, 0, 0, 0, 0, 0, self._name,
                               types, 8 if n else 0, ctypes.addressof(memory) if n else 0, n)  # fmt: skip
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(BlockingIOError):
                return bpf(_LOAD, attr)
        return bpf(_LOAD, attr)


class RingBuffer:
    """The records that a program writes into a map of kind RING_BUFFER, in the order of their reservation.

    memory: the map; its number of entries is its size in bytes. Raises OSError: it cannot be mapped.
    """

    def __init__(self, memory: Map) -> None:
        self._size, self._pid = memory.entries, os.getpid()
        self._places: list[tuple[int, int]] = []
        try:
            # the consumer's cursor can be written, the producer's and the data (mapped twice in a row) only read
            self._consumed, _ = self._map(memory.fd, _PAGE, 0)
            self._produced, self._data = self._map(memory.fd, _PAGE + 2 * self._size, _PAGE)
        except OSError:
            self.close()
            raise

    def _map(self, fd: int, size: int, offset: int) -> tuple[NDArray[Any], memoryview]:
        """The cursor at the begin of what is mapped, and the bytes behind its page."""
        self._places.append((at := perf.map_ring(fd, size, offset=offset, writable=not offset), size))
        memory: Any = (ctypes.c_uint8 * size).from_address(at)
        return np.frombuffer(memory, "<u8", 1), memoryview(memory).cast("B")[_PAGE:]

    def read(self) -> Iterator[memoryview]:
        """The records since the last call; each is valid until the next one is wanted."""
        at, end = int(self._consumed[0]), int(self._produced[0])
        perf.memory_barrier()
        while at < end:
            begin = at % self._size
            head = int.from_bytes(self._data[begin : begin + 4], "little")
            if head & _BUSY:
                break
            length = head & _LENGTH
            if not head & _DISCARD:
                yield self._data[begin + 8 : begin + 8 + length]
            at += length + 15 & ~7
            self._consumed[0] = at

    def close(self) -> None:
        """Unmaps it, where it is mapped: a forked child has no right to what has taken its place."""
        self._consumed = self._produced = np.zeros(1, "<u8")
        self._data = memoryview(b"")
        while self._places:
            place = self._places.pop()
            if os.getpid() == self._pid:
                perf.unmap_ring(*place)


_FIRST_FUNCTION = 3  # behind int and int f()


def _types(functions: int) -> int:
    """The descriptor of a description (BTF) of that many functions, without which none can be handed to a helper."""
    names = b"\0int\0" + b"".join(b"f%d\0" % i for i in range(functions))
    types = struct.pack("<IIII", 1, 1 << 24, 4, 1 << 24 | 32) + struct.pack("<III", 0, 13 << 24, 1)
    for i in range(functions):
        types += struct.pack("<III", names.index(b"f%d\0" % i), 12 << 24, 2)
    blob = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names)) + types + names
    memory = ctypes.create_string_buffer(blob, len(blob))
    return bpf(_LOAD_TYPES, _TYPES_ATTR.pack(ctypes.addressof(memory), 0, len(blob), 0, 0, 0))


def _possible_cpus() -> int:
    """Number of CPUs that the kernel keeps room for: /sys/devices/system/cpu/possible, `0-3`."""
    ranges = procfs.content("/sys/devices/system/cpu/possible").strip()
    return int(ranges.rpartition(b",")[2].rpartition(b"-")[2]) + 1
