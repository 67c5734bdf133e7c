"""bpf(2): maps, programs and the ring buffer that a program writes into. Nothing is opened when this is imported.

Source: include/uapi/linux/bpf.h (union bpf_attr), kernel/bpf/ringbuf.c, man 2 bpf.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace_plugins.os.linux import libc, procfs
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.python_stacks.assembler import Code

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _LOAD, _LOAD_TYPES = 0, 1, 2, 3, 5, 18
HASH, PROGRAM_ARRAY, PERF_EVENT_ARRAY, PER_CPU_ARRAY, LRU_HASH, RING_BUFFER = 1, 3, 4, 6, 9, 27
_PERF_EVENT_PROGRAM = 7
#: the helpers that a program walking user memory needs are for programs with a licence that is GPL-compatible
_LICENCE = b"Dual MIT/GPL"
_LOG_BYTES = 1 << 16
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
    """A loaded program for perf events.

    Raises:
        OSError: the kernel refuses it; `strerror` ends with the verifier's last line, if there is one.
    """

    def __init__(self, code: Code, name: bytes) -> None:
        self._code = ctypes.create_string_buffer(code.instructions, len(code.instructions))
        self._licence, self._name = ctypes.create_string_buffer(_LICENCE), b"wstrace_" + name
        self._functions = code.functions if len(code.functions) > 1 else ()
        types = _types(len(self._functions)) if self._functions else 0
        try:
            self.fd = self._verified(types)
        except OSError as refused:
            if refused.errno not in (errno.EINVAL, errno.EACCES, errno.E2BIG, errno.EFAULT):
                raise
            raise OSError(refused.errno, f"{refused.strerror}: {self._why(types)}") from None
        finally:
            if types:
                os.close(types)

    def _verified(self, types: int) -> int:
        """Loads it, again where a signal has come: the verifier gives up at one (EAGAIN), whoever it is for."""
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(BlockingIOError):
                return self._load(types, 0, 0, 0)
        return self._load(types, 0, 0, 0)

    def _load(self, types: int, level: int, log: int, size: int) -> int:
        code, licence, n = ctypes.addressof(self._code), ctypes.addressof(self._licence), len(self._functions)
        infos = b"".join(struct.pack("<II", begin, _FIRST_FUNCTION + i) for i, begin in enumerate(self._functions))
        memory = ctypes.create_string_buffer(infos)
        return bpf(_LOAD, _LOAD_ATTR.pack(_PERF_EVENT_PROGRAM, len(self._code) // 8, code, licence, level, size, log, 0,
                                          0, self._name, types, 8 if n else 0, ctypes.addressof(memory) if n else 0,
                                          n))  # fmt: skip

    def _why(self, types: int) -> str:
        log = ctypes.create_string_buffer(_LOG_BYTES)
        with contextlib.suppress(OSError):
            os.close(self._load(types, 1, ctypes.addressof(log), _LOG_BYTES))
        lines = [line for line in log.value.decode(errors="replace").splitlines() if not line.startswith("processed")]
        return lines[-1] if lines else "the verifier says nothing"


class RingBuffer:
    """The records that a program writes into a map of kind RING_BUFFER, in the order of their reservation.

    Args:
        memory: the map; its number of entries is its size in bytes.

    Raises:
        OSError: it cannot be mapped.
    """

    def __init__(self, memory: Map) -> None:
        self._size = memory.entries
        # the consumer's cursor can be written, the producer's and the data (mapped twice in a row) only read
        self._places = [(perf.map_ring(memory.fd, _PAGE), _PAGE)]
        try:
            at = perf.map_ring(memory.fd, _PAGE + 2 * self._size, offset=_PAGE, writable=False)
        except OSError:
            perf.unmap_ring(*self._places[0])
            raise
        self._places.append((at, _PAGE + 2 * self._size))
        consumer: Any = (ctypes.c_uint8 * 8).from_address(self._places[0][0])
        producer: Any = (ctypes.c_uint8 * (_PAGE + 2 * self._size)).from_address(at)
        self._consumed: NDArray[Any] = np.frombuffer(consumer, "<u8")
        self._produced: NDArray[Any] = np.frombuffer(producer, "<u8", 1)
        self._data = memoryview(producer).cast("B")[_PAGE:]

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
        """Unmaps it."""
        nothing = np.zeros(1, "<u8")
        self._consumed = self._produced = nothing
        self._data = memoryview(b"")
        for place in self._places:
            perf.unmap_ring(*place)
        self._places = []


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
