"""The maps that the programs and the tracer share, and what of the kernel is compiled into the programs."""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

from wstrace_plugins.page_faults.linux.python_stacks import bpf
from wstrace_plugins.page_faults.linux.python_stacks.protocol import CODE_HEAD, FILE_ROOM, LINES_ROOM, NAME_ROOM, S

_PROCESSES, _THREADS, _KNOWN, _PROGRAMS, _LIBRARIES = 8192, 16384, 1 << 15, 1024, 256
#: bytes of the ring buffer for new stacks and code objects
RING_BYTES = 4 << 20
WALKERS = 32
_PAGE = 4096


class ProgramPath(NamedTuple):
    """Offsets of the members on the way from a task to its program's inode and device, and of mm_struct.start_code.

    changed: of the inode's time of change, its seconds and its nanoseconds.
    """

    mm: int
    exe_file: int
    start_code: int
    inode: int
    number: int
    super_block: int
    device: int
    changed: tuple[int, int]


class Mapped(NamedTuple):
    """Offsets in struct vm_area_struct: where it begins, its first page in the file, and the file."""

    start: int
    page: int
    file: int


class Kernel(NamedTuple):
    """Offsets in struct task_struct, in bytes; namespace: device and inode of our pid namespace, None = the first.

    program: the way from there to what identifies the program, and to where its code begins.
    mapped: what is needed to find the library that a process executes.
    """

    self_exec_id: int
    real_parent: int
    tgid: int
    thread_pointer: int
    program: ProgramPath
    mapped: Mapped
    namespace: tuple[int, int] | None = None


class Maps:
    """The maps of a trace.

    scratch: a CPU's memory (protocol.S). enabled: whether anything was told. told: pid -> what the tracer knows of its
    CPython: u64 salt, u64 address of _PyRuntime, u64 walker. programs: u64 inode, u32 device, u32 and u64 nanoseconds
    and seconds of the time of change of a program that is a CPython by itself -> u64 _PyRuntime from where its code
    begins, u64 walker; of one that needs a library: 0, NEEDS. libraries: the same of a CPython's library -> u64
    _PyRuntime from where the file's begin is mapped, as its code tells that; u64 walker. processes: tgid -> as told,
    and of which exec. outputs: where rows go, by CPU and kind. asked: pids that the tracer is to look at, in a ring
    buffer. walkers: a program for each CPython. multiplier: of the hashes, secret to the traced programs.

    The maps that walkers alone need are made when one is loaded: a command without a CPython does not pay their 6 ms.

    Raises:
        OSError: the kernel refuses a map.
    """

    def __init__(self, cpus: int, ring_bytes: int = RING_BYTES) -> None:
        self.multiplier = int.from_bytes(os.urandom(8), "little") | 1
        self._all: list[bpf.Map] = []
        self._ring_bytes = ring_bytes
        try:
            self.scratch = self._map(bpf.PER_CPU_ARRAY, 4, S.BYTES, 1, b"scratch")
            self.enabled = self._map(bpf.ARRAY, 4, 8, 1, b"enabled")
            self.told = self._map(bpf.HASH, 8, 24, _PROCESSES, b"told")
            self.programs = self._map(bpf.LRU_HASH, 24, 16, _PROGRAMS, b"files")
            self.libraries = self._map(bpf.LRU_HASH, 24, 16, _LIBRARIES, b"libs")
            self.processes = self._map(bpf.LRU_HASH, 8, 32, _PROCESSES, b"procs")
            self.outputs = self._map(bpf.PERF_EVENT_ARRAY, 4, 4, 2 * cpus, b"rows")
            self.asked = self._map(bpf.RING_BUFFER, 0, 0, _PAGE, b"asked")
            self.walkers = self._map(bpf.PROGRAM_ARRAY, 4, 4, WALKERS, b"walkers")
        except OSError:
            self.close()
            raise

    @functools.cached_property
    def threads(self) -> bpf.Map:
        """tid and tgid -> the thread's state, and what tells whether that still holds."""
        return self._map(bpf.LRU_HASH, 8, 32, _THREADS, b"threads")

    @functools.cached_property
    def seen(self) -> bpf.Map:
        """Hashes of stacks that the tracer has."""
        return self._map(bpf.LRU_HASH, 8, 8, _KNOWN, b"seen")

    @functools.cached_property
    def codes(self) -> bpf.Map:
        """Ids of code objects that the tracer has."""
        return self._map(bpf.LRU_HASH, 8, 8, _KNOWN, b"codes")

    @functools.cached_property
    def code(self) -> bpf.Map:
        """Room for a code object."""
        return self._map(bpf.PER_CPU_ARRAY, 4, CODE_HEAD + NAME_ROOM + FILE_ROOM + LINES_ROOM, 1, b"code")

    @functools.cached_property
    def records(self) -> bpf.Map:
        """The ring buffer of what walkers tell."""
        return self._map(bpf.RING_BUFFER, 0, 0, self._ring_bytes, b"records")

    def _map(self, kind: int, key: int, value: int, entries: int, name: bytes) -> bpf.Map:
        made = bpf.Map(kind, key, value, entries, name)
        self._all.append(made)
        return made

    def close(self) -> None:
        """Closes all descriptors."""
        for one in self._all:
            one.close()
