"""The programs in the running kernel, what they need of it, and what its refusals mean.

BTF, the description that the kernel gives of itself, says where members of its structures stand; only what is needed
is looked up, as a scan of all types takes 0.1 s. Source: Documentation/bpf/btf.rst, include/uapi/linux/btf.h.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.errors import Unavailable
from wstrace.interfaces import Level
from wstrace_plugins.os.linux import procfs, versions
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.python_stacks import bpf
from wstrace_plugins.page_faults.linux.python_stacks.programs.common import Gate
from wstrace_plugins.page_faults.linux.python_stacks.programs.entry import entry, of_others
from wstrace_plugins.page_faults.linux.python_stacks.protocol import ANY_LIFE, NONE, WALKERS, Kernel, Maps, S
from wstrace_plugins.page_faults.linux.rings import MAJOR, Ring

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace_plugins.os.linux.cpython.layouts import Layout
    from wstrace_plugins.page_faults.linux.python_stacks.interpreters import Python

_FIRST_KERNEL = (5, 17)  # with bpf_loop() and bpf_find_vma()
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_MACHINE = "x86_64"
_SYS_ADMIN, _NEEDED = 1 << 21, 1 << 39 | 1 << 38  # CAP_SYS_ADMIN; CAP_BPF and CAP_PERFMON
_MEMBERS = (("task_struct", "self_exec_id"), ("task_struct", "real_parent"), ("task_struct", "tgid"),
            ("task_struct", "group_leader"), ("task_struct", "start_boottime"), ("task_struct", "thread"),
            ("thread_struct", "fsbase"), ("vm_area_struct", "vm_pgoff"),
            ("vm_area_struct", "vm_file"), ("file", "f_inode"), ("inode", "i_size"))  # fmt: skip
#: bytes of the kernel's description that are read at first, and then: a read of a page takes 20 us, and the structures
#: of tasks stand in its first 50 KiB
BEGINS = (1 << 16, 1 << 20, 1 << 30)
_CONTAINER = "start the container with --cap-add BPF --cap-add PERFMON, or with --security-opt seccomp=unconfined"


def this_kernel() -> Kernel:
    """Offsets in the running kernel's structures, and our pid namespace.

    Raises Unavailable: it does not describe itself, or the machine is not x86-64.
    """
    if platform.machine() != _MACHINE:
        raise Unavailable(f"Python stacks are read on {_MACHINE} only, this machine is {platform.machine()}")
    for begin in BEGINS:
        types = KernelTypes(begin)
        found = {".".join(member): types.offset(*member) for member in _MEMBERS}
        changed, offsets = _changed(types), [offset for offset in found.values() if offset is not None]
        if len(offsets) == len(found) and changed is not None:
            break
    else:
        missing = next((member for member, offset in found.items() if offset is None), "inode.i_ctime")
        raise Unavailable(f"this kernel's {missing} is not where it can be read")
    exec_id, parent, tgid, leader, began, thread, base, *rest = offsets
    status = os.stat("/proc/self/ns/pid")
    namespace = None if status.st_ino == _FIRST_PID_NAMESPACE else (status.st_dev, status.st_ino)
    return Kernel(namespace, exec_id, parent, tgid, leader, began, thread + base, *[*rest, *changed])


def _changed(types: KernelTypes) -> tuple[int, int] | None:
    """Of an inode's time of change, its seconds and its nanoseconds, by the names of this kernel and of older ones."""
    seconds, nanoseconds = types.offset("inode", "i_ctime_sec"), types.offset("inode", "i_ctime_nsec")
    if seconds is not None and nanoseconds is not None:
        return seconds, nanoseconds
    whole = types.offset("inode", "__i_ctime")
    whole = types.offset("inode", "i_ctime") if whole is None else whole
    return None if whole is None else (whole, whole + 8)  # struct timespec64


def refusal(error: OSError) -> Unavailable:
    """What a refused bpf(2), or a refused event of its own that it writes to, means, and what lifts the refusal."""
    python = os.path.realpath(sys.executable)
    status = procfs.status(os.getpid())
    capabilities = int(status.get("CapEff", "0"), 16)
    if versions.kernel() < _FIRST_KERNEL:
        return Unavailable("this kernel's eBPF lacks functions that the programs call", "Linux 5.17 or newer")
    if error.errno == errno.ENOSYS:
        return Unavailable("this kernel has no bpf(2), or a seccomp filter hides it", _CONTAINER)
    if error.errno not in (errno.EPERM, errno.EACCES):
        return Unavailable(f"the kernel refuses the eBPF program ({error.strerror})")
    if not capabilities & _SYS_ADMIN and capabilities & _NEEDED != _NEEDED:
        return Unavailable(
            "they need CAP_BPF and CAP_PERFMON, or root",
            f"sudo {sys.executable} -m wstrace ..., or sudo setcap cap_bpf,cap_perfmon+ep {python}",
        )
    if _in_user_namespace():
        return Unavailable(
            "the capabilities of a user namespace (a rootless container) are not those of the machine",
            "run wstrace as root outside of the container, attached to the process",
        )
    if status.get("Seccomp") == "2":
        return Unavailable("bpf(2) is refused by a seccomp filter, that of a container or a service", _CONTAINER)
    return Unavailable(
        f"bpf(2) is refused ({error.strerror}) although our rights are enough: by what is not known",
        "look for a security module (SELinux, AppArmor, lockdown) in the kernel's log: dmesg",
    )


def _in_user_namespace() -> bool:
    """Whether the ids of this process are not those of the machine."""
    try:
        return procfs.content("/proc/self/uid_map").split() != [b"0", b"0", b"4294967295"]
    except OSError:
        return False


def tried() -> Level:
    """Whether Python stacks can be had: "exact", or "none" and why. The programs are loaded, and unloaded again."""
    from wstrace_plugins.os.linux.cpython.layouts import READ, VERSIONS, layout

    version = sys.version_info[:2]
    if version > VERSIONS[-1]:
        return Level("none", f"this is CPython {version[0]}.{version[1]}: {READ}")
    try:
        gate = Gate()
        try:
            programs = Programs([0], gate)
        finally:
            gate.close()
        try:
            programs.walker(layout((3, 12), b""), (0, 0))
            os.close(perf.perf_event_open(output_attributes(), -1, perf.online_cpus()[0]))
        finally:
            programs.close()
    except (Unavailable, OSError) as error:
        no = error if isinstance(error, Unavailable) else refusal(error)
        return Level("none", no.why, no.remedy)
    return Level("exact")


_U32, _PENDING, _REPORTED = struct.Struct("<I"), struct.Struct("<Q16s"), struct.Struct("<QQQ16s")
_FILE_KEY, _IN_FILE, _ALL_BITS = struct.Struct("<QQQ"), struct.Struct("<QQ"), (1 << 64) - 1


class Programs:
    """The programs behind the gate, and the memory that they share with the tracer.

    cpus: the CPUs that are traced. gate: what hangs on the events, and leads to the programs from now on. others: of
    processes that run no CPython alone, stacks are sampled. groups: those of groups are traced. Raises OSError,
    Unavailable: the kernel refuses them.
    """

    def __init__(self, cpus: Sequence[int], gate: Gate, *, others: bool = False, groups: bool = False) -> None:
        kernel = this_kernel()
        self._outputs: list[int] = []
        self._loaded: list[bpf.Program] = []
        self._rings: list[bpf.RingBuffer] = []
        self._walkers: dict[tuple[Layout, tuple[int, int]], int] = {}
        self.maps = Maps(max(cpus) + 1, groups=groups)
        try:
            self._loaded.append(bpf.Program(entry(self.maps, kernel, gate.memory.fd), b"entry"))
            self._rings.append(bpf.RingBuffer(self.maps.pending))
            gate.lead_to(self._loaded[0])
            if others:
                self._loaded.append(bpf.Program(of_others(self.maps), b"others"))
                gate.lead_to(self._loaded[-1], samples=True)
        except OSError:
            self.close()
            raise

    def join(self, ring: Ring) -> None:
        """Lets the programs write rows into a fault ring. Raises OSError."""
        self._outputs.append(fd := perf.perf_event_open(output_attributes(), -1, ring.cpu))
        perf.ioctl(fd, perf.PERF_EVENT_IOC_SET_OUTPUT, ring.fd)
        perf.ioctl(fd, perf.PERF_EVENT_IOC_ENABLE)
        self.maps.outputs.set(_U32.pack(2 * ring.cpu + (ring.kind == MAJOR)), _U32.pack(fd))

    def walker(self, layout: Layout, static: tuple[int, int]) -> int:
        """The index of the program for that layout and static data, loaded if it is new. Raises OSError."""
        if (index := self._walkers.get((layout, static))) is not None:
            return index
        if (index := len(self._walkers)) >= WALKERS:
            raise OSError(errno.ENOSPC, "there are programs for as many CPythons as can be held")
        from wstrace_plugins.page_faults.linux.python_stacks.programs.walker import walker  # 12 ms, for a CPython alone

        loaded = bpf.Program(walker(self.maps, layout, static), b"py%d%d" % layout.version)
        self._loaded.append(loaded)
        if not self._walkers:
            self._rings.append(bpf.RingBuffer(self.maps.records))
        self.maps.walkers.set(_U32.pack(index), _U32.pack(loaded.fd))
        self._walkers[layout, static] = index
        return index

    def tell_file(self, file: tuple[int, int], python: Python, walker: int) -> None:
        """Tells of a file with a CPython: its bytes, its time of change in ns. Raises OSError."""
        size, changed_ns = file
        key = _FILE_KEY.pack(size, changed_ns // 10**9 & _ALL_BITS, changed_ns % 10**9)
        self.maps.files.set(key, _IN_FILE.pack(python.from_begin & _ALL_BITS, walker))

    def tell_process(self, pid: int, life: bytes = ANY_LIFE, at: int = 0, walker: int = NONE) -> None:
        """Tells which CPython a process runs: the address of its _PyRuntime, and its walker. Raises OSError.

        life: for which alone that holds, as the programs give it: the number of its exec, and when it began.
        """
        salt = int.from_bytes(os.urandom(8), "little") | 1
        self.maps.reported.set(pid.to_bytes(8, "little"), _REPORTED.pack(salt, at, walker, life))

    def pending(self) -> Iterator[tuple[int, bytes]]:
        """The processes that the programs want to know of since the last call: pid and life."""
        return (_PENDING.unpack(record) for record in self._rings[0].read())

    def records(self) -> Iterator[memoryview]:
        """What the walkers have reported since the last call; each is valid until the next one is wanted."""
        return self._rings[1].read() if self._walkers else iter(())

    def forget(self, codes: Iterable[int], stacks: Iterable[int]) -> None:
        """Has the walkers report code objects and stacks again, when they are used again."""
        for key in codes:
            self.maps.codes.delete(key.to_bytes(8, "little"))
        for key in stacks:
            self.maps.seen.delete(key.to_bytes(8, "little"))

    def count(self, place: int) -> int:
        """A count of the programs, of all CPUs."""
        raw = self.maps.scratch.get(_U32.pack(0)) or b""
        return int(np.frombuffer(raw, "<u8").reshape(-1, (S.BYTES + 7) // 8)[:, place // 8].sum())

    def close(self) -> None:
        """Closes programs, maps and events."""
        for ring in self._rings:
            ring.close()
        while self._outputs:
            os.close(self._outputs.pop())
        self.maps.close()
        for one in self._loaded:
            one.close()


def output_attributes() -> NDArray[Any]:
    """Of the event by which a program writes rows: they have the size of a sample, and so have its LOST records."""
    return perf.attr(
        perf.PERF_TYPE_SOFTWARE, perf.PERF_COUNT_SW_BPF_OUTPUT, "sample_id_all", sample_period=1,
        sample_type=perf.PERF_SAMPLE_RAW | perf.PERF_SAMPLE_TID | perf.PERF_SAMPLE_TIME,
    )  # fmt: skip


_FILE = "/sys/kernel/btf/vmlinux"
_HEADER = struct.Struct("<HBBIIIII")  # magic, version, flags, header's size, types' offset and size, strings' both
_MAGIC, _STRUCT = 0xEB9F, 4
#: 32-bit words of a type (name, kind and number of members, size) and of a member of a structure
_HEAD_WORDS, _MEMBER_WORDS = 3, 3
_MOST_MEMBERS = 4096
_NOWHERE = 0xFFFFFFFF


class KernelTypes:
    """The structures of the running kernel.

    begin: bytes of the types and of the names that are read: the structures of a task stand near the begin. Raises
    Unavailable: this kernel does not describe itself.
    """

    def __init__(self, begin: int) -> None:
        try:
            with open(_FILE, "rb", buffering=0) as opened:
                magic, _, _, header, types, types_size, names, names_size = _HEADER.unpack(opened.read(_HEADER.size))
                opened.seek(header + types)
                self._types = np.frombuffer(_read(opened, min(types_size, begin)), "<u4")
                opened.seek(header + names)
                self._names = _read(opened, min(names_size, begin))
        except (OSError, struct.error):
            raise Unavailable(
                "this kernel does not describe its structures (/sys/kernel/btf/vmlinux)",
                "run a kernel built with CONFIG_DEBUG_INFO_BTF",
            ) from None
        self._found: dict[str, int] = {}
        if magic != _MAGIC:
            raise Unavailable(f"{_FILE} is no BTF of this machine's byte order")

    def offset(self, structure: str, member: str) -> int | None:
        """The offset of a member in bytes; None where the structure has none of that name."""
        wanted = self._name(member)
        for at in np.flatnonzero(self._types == self._name(structure)).tolist():
            info = int(self._types[at + 1]) if at + 1 < len(self._types) else 0
            count, end = info & 0xFFFF, at + _HEAD_WORDS + (info & 0xFFFF) * _MEMBER_WORDS
            if info >> 24 & 31 != _STRUCT or not 0 < count <= _MOST_MEMBERS or end > len(self._types):
                continue
            members = self._types[at + _HEAD_WORDS : end].reshape(count, _MEMBER_WORDS)  # name, type, offset in bits
            hit = members[members[:, 0] == wanted]
            if len(hit):
                bits = int(hit[0, 2])
                return (bits & 0xFFFFFF if info >> 31 else bits) // 8
        return None

    def _name(self, text: str) -> int:
        if text not in self._found:  # most are wanted several times, and a search takes 10 us of each start
            at = self._names.find(b"\0" + text.encode() + b"\0")
            self._found[text] = at + 1 if at >= 0 else _NOWHERE
        return self._found[text]


def _read(file: FileIO, size: int) -> bytes:
    """That many bytes: a read of sysfs gives a page at a time."""
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)[: sum(map(len, parts)) // 4 * 4]
