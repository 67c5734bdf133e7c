"""The maps that the programs and the tracer share, and what of the kernel is compiled into the programs."""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

from wstrace_plugins.page_faults.linux.python_stacks import bpf
from wstrace_plugins.page_faults.linux.python_stacks.protocol import CODE_HEAD, FILE_ROOM, LINES_ROOM, NAME_ROOM, S

_PROCESSES, _THREADS, _KNOWN, _FILES = 8192, 16384, 1 << 15, 256
#: bytes of the ring buffer for new stacks and code objects
RING_BYTES = 4 << 20
WALKERS = 32
_PAGE = 4096


class Kernel(NamedTuple):
    """Offsets of members in bytes, in task_struct, vm_area_struct, file and inode; our pid namespace.

    namespace: its device and inode, None = the first.
    """

    namespace: tuple[int, int] | None
    self_exec_id: int
    real_parent: int
    tgid: int
    thread_pointer: int
    mapping_page: int
    mapping_file: int
    file_inode: int
    inode_size: int
    inode_seconds: int
    inode_nanoseconds: int


class Maps:
    """The maps of a trace.

    scratch: a CPU's memory (protocol.S). reported: pid -> what the tracer knows of its CPython: u64 salt, u64 address
    of _PyRuntime, u64 walker, u64 exec that it holds for, 0 = any. files: u64 bytes, u64 seconds and u64 nanoseconds of
    the time of change of a file with a CPython (overlayfs gives the same of the file below) -> u64 _PyRuntime from
    where the file's begin is mapped, as its code tells that; u64 walker. processes: tgid -> as reported, and of which
    exec. outputs: where rows go, by CPU and kind. pending: pid and exec of processes that the tracer is to look at.
    walkers: a program for each CPython. multiplier: of the hashes, secret to the traced programs.

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
            self.reported = self._map(bpf.LRU_HASH, 8, 32, _PROCESSES, b"known")
            self.files = self._map(bpf.LRU_HASH, 24, 16, _FILES, b"files")
            self.processes = self._map(bpf.LRU_HASH, 8, 32, _PROCESSES, b"procs")
            self.outputs = self._map(bpf.PERF_EVENT_ARRAY, 4, 4, 2 * cpus, b"rows")
            self.pending = self._map(bpf.RING_BUFFER, 0, 0, _PAGE, b"pending")
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
