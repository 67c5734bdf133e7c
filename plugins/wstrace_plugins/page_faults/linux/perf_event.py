"""perf_event_open(2): structures, constants and calls under the system's own names.

Source: include/uapi/linux/perf_event.h, man 2 perf_event_open. Nothing is opened when this module is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.errors import Unavailable, lifted_by
from wstrace_plugins.os import foreign
from wstrace_plugins.os.linux import libc, procfs

if TYPE_CHECKING:
    from numpy.typing import NDArray

# -- struct perf_event_attr, 112 bytes = PERF_ATTR_SIZE_VER5, known to every kernel since 4.1 -----------------------

_FIELDS = (
    "type:u4 size:u4 config:u8 sample_period:u8 sample_type:u8 read_format:u8 flags:u8 wakeup_watermark:u4 bp_type:u4 "
    "config1:u8 config2:u8 branch_sample_type:u8 sample_regs_user:u8 sample_stack_user:u4 clockid:i4 "
    "sample_regs_intr:u8 aux_watermark:u4 sample_max_stack:u2 reserved_2:u2"
)
ATTR = np.dtype([(name, "<" + kind) for name, _, kind in (field.partition(":") for field in _FIELDS.split())])
assert ATTR.itemsize == 112
assert ATTR.fields is not None
assert ATTR.fields["clockid"][1] == 92

PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT = 1, 2
PERF_COUNT_SW_PAGE_FAULTS = 2
PERF_COUNT_SW_PAGE_FAULTS_MIN, PERF_COUNT_SW_PAGE_FAULTS_MAJ, PERF_COUNT_SW_DUMMY = 5, 6, 9
PERF_COUNT_SW_BPF_OUTPUT = 10
PERF_SAMPLE_IP, PERF_SAMPLE_TID, PERF_SAMPLE_TIME, PERF_SAMPLE_ADDR, PERF_SAMPLE_RAW = 1, 2, 4, 8, 1024
PERF_SAMPLE_REGS_USER, PERF_SAMPLE_STACK_USER = 1 << 12, 1 << 13
PERF_FORMAT_LOST = 16  # Linux 6.0

#: The bits of attr.flags, under their names in the header.
BITS = {
    "disabled": 0, "inherit": 1, "exclude_kernel": 5, "exclude_hv": 6, "mmap": 8, "comm": 9, "freq": 10,
    "enable_on_exec": 12,
    "task": 13, "watermark": 14, "mmap_data": 17, "sample_id_all": 18, "mmap2": 23, "comm_exec": 24, "use_clockid": 25,
    "ksymbol": 29, "cgroup": 32, "inherit_thread": 35,
}  # fmt: skip
CLOCK_MONOTONIC = 1
PERF_FLAG_PID_CGROUP, PERF_FLAG_FD_CLOEXEC = 4, 8
_NO_FLAGS = 1 << 62  # a bit that no kernel knows

# _IO('$', n): the same on x86-64 and arm64
PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_DISABLE, PERF_EVENT_IOC_SET_OUTPUT = 0x2400, 0x2401, 0x2405
PERF_EVENT_IOC_PERIOD = 0x40082404  # _IOW('$', 4, u64)
PERF_EVENT_IOC_SET_FILTER = 0x40082406
PERF_EVENT_IOC_SET_BPF = 0x40042408  # _IOW('$', 8, u32)

# -- records ---------------------------------------------------------------------------------------------------------

PERF_RECORD_LOST, PERF_RECORD_COMM, PERF_RECORD_EXIT, PERF_RECORD_FORK = 2, 3, 4, 7
PERF_RECORD_SAMPLE, PERF_RECORD_MMAP2, PERF_RECORD_CGROUP = 9, 10, 19
PERF_RECORD_MISC_KERNEL, PERF_RECORD_MISC_USER = 1, 2
PERF_RECORD_MISC_COMM_EXEC = 1 << 13

#: The sample_type of faults, and PERF_RECORD_SAMPLE of it.
SAMPLE_TYPE = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_ADDR
SAMPLE = np.dtype([
    ("type", "<u4"), ("misc", "<u2"), ("size", "<u2"), ("ip", "<u8"), ("pid", "<u4"), ("tid", "<u4"),
    ("time", "<u8"), ("addr", "<u8"),
])  # fmt: skip
#: PERF_RECORD_LOST with the sample_id of sample_id_all; it has the size of a SAMPLE, so a ring is an array of rows.
LOST = np.dtype([
    ("type", "<u4"), ("misc", "<u2"), ("size", "<u2"), ("id", "<u8"), ("lost", "<u8"), ("pid", "<u4"), ("tid", "<u4"),
    ("time", "<u8"),
])  # fmt: skip
assert SAMPLE.itemsize == LOST.itemsize


class Field(NamedTuple):
    """A u64 that samples of faults may have behind SAMPLE; these stand there in the order of their bits.

    bit: of sample_type. column: the name that merge() gives it, and its type there. lacking: what is noted where the
    kernel does not know it.
    """

    bit: int
    column: str
    dtype: str
    lacking: str = ""


#: Those of all faults, as far as the kernel knows them: a further one is a row here, and a column in the schema.
SAMPLE_FIELDS = (
    # PERF_SAMPLE_DATA_PAGE_SIZE
    Field(1 << 22, "page_size", "<u4", "the sizes of the pages that faults brought: they need Linux 5.11"),
)
#: That of the faults of groups: PERF_SAMPLE_CGROUP, Linux 5.7.
CGROUP = Field(1 << 21, "cgroup_id", "<u8")

#: struct perf_event_mmap_page: the positions of its cursors, as indices of u64
DATA_HEAD, DATA_TAIL = 1024 // 8, 1032 // 8

# -- calls -----------------------------------------------------------------------------------------------------------

_OPEN, _MEMBARRIER = libc.number_of(241, x86_64=298), libc.number_of(283, x86_64=324)
_MEMBARRIER_CMD_GLOBAL_EXPEDITED = 2
#: The least perf_event_paranoid at which a process without capabilities gets no event that counts in the kernel, and
#: the least at which it gets none at all (in kernels that Debian, Ubuntu or Android have patched); and the least at
#: which it gets none on all processes of a CPU, or on those of a cgroup.
_PARANOID_KERNEL, _PARANOID_ALL, _PARANOID_CPU = 2, 3, 1
_ENOUGH = 1 << 38 | 1 << 21  # CAP_PERFMON, CAP_SYS_ADMIN: with either of them perf_event_paranoid does not matter
_PROT_READ, _PROT_READ_WRITE, _MAP_SHARED = 1, 3, 1

_mmap = foreign.Foreign(
    None, "mmap", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32,
    ctypes.c_int64,
)  # fmt: skip
_munmap = foreign.Foreign(None, "munmap", ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t)


def attr(kind: int, config: int, *bits: str, **fields: int) -> NDArray[Any]:
    """A perf_event_attr on CLOCK_MONOTONIC, disabled, with these bits and fields. Shape (1,)."""
    one = np.zeros(1, ATTR)
    one["type"], one["config"], one["size"], one["clockid"] = kind, config, ATTR.itemsize, CLOCK_MONOTONIC
    one["flags"] = sum(1 << BITS[bit] for bit in {"disabled", "use_clockid", *bits})
    for name, value in fields.items():
        one[name] = value
    return one


def perf_event_open(attributes: NDArray[Any], pid: int, cpu: int, flags: int = 0) -> int:
    """Opens an event on one CPU: returns a close-on-exec descriptor. Raises OSError.

    attributes: perf_event_attr, shape (1,). pid: a thread; -1 = all that run on the CPU; with PERF_FLAG_PID_CGROUP the
    descriptor of a cgroup's folder. cpu: the CPU; -1 = all, for a thread. flags: PERF_FLAG_*.
    """
    address = attributes.ctypes.data
    while (fd := libc.syscall(_OPEN, address, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC | flags)) < 0:
        error = _oserror("perf_event_open")
        # interrupted while another thread of that process called exec: retried, as in PEP 475
        if error.errno != errno.EINTR:
            raise error
    return fd


def ioctl(fd: int, request: int, argument: int = 0) -> None:
    """ioctl(2) on an event: ENABLE, DISABLE (both with inherited events), SET_OUTPUT, SET_FILTER. Raises OSError."""
    if libc.ioctl(fd, request, argument) < 0:
        raise _oserror("ioctl")


def set_period(fd: int, period: int) -> None:
    """Has an event record one out of so many from now on, but for those that were inherited from it. Raises OSError."""
    value = ctypes.c_uint64(period)
    ioctl(fd, PERF_EVENT_IOC_PERIOD, ctypes.addressof(value))


def map_ring(fd: int, size: int, *, offset: int = 0, writable: bool = True) -> int:
    """Maps a ring: the address of an event's control page, followed by size - 1 pages of buffer. Raises OSError.

    The mmap module is not used: it duplicates the descriptor, and in a forked child, which does not inherit this
    mapping (VM_DONTCOPY), it would unmap whatever has taken its place.
    """
    address: int | None = _mmap(None, size, _PROT_READ_WRITE if writable else _PROT_READ, _MAP_SHARED, fd, offset)
    if address is None or address == (1 << 64) - 1:
        raise _oserror("mmap")
    return address


def unmap_ring(address: int, size: int) -> None:
    """Unmaps a ring, by munmap(2)."""
    _munmap(address, size)


def memory_barrier() -> None:
    """Orders our loads and stores of a ring against the kernel's. On x86 the CPU does this by itself.

    Source: perf_output_put_handle() in kernel/events/ring_buffer.c; membarrier(2): its command GLOBAL_EXPEDITED
    runs a full barrier on the calling thread.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        libc.syscall(_MEMBARRIER, _MEMBARRIER_CMD_GLOBAL_EXPEDITED)


def online_cpus() -> list[int]:
    """The numbers of the online CPUs, from /sys/devices/system/cpu/online (`0-3,8`)."""
    ranges = [part.partition(b"-") for part in procfs.content("/sys/devices/system/cpu/online").strip().split(b",")]
    return [cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)]


def _oserror(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), call)


def close_all(fds: Iterable[int]) -> None:
    """Closes descriptors, as far as they are open."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


_SCM_MAX_FD = 253  # descriptors in a message (include/net/scm.h)


def close_later(fds: list[int]) -> None:
    """Closes the descriptors of tracepoints, and empties the list.

    The last event of each waits 20 to 50 ms for all CPUs (tracepoint_synchronize_unregister()), one after the other: a
    thread of the kernel does that (Linux 6.9).

    They are put into a message in the queue of a socket that nothing but this queue itself refers to. The kernel's own
    collector (net/unix/garbage.c) frees such sockets with what their messages hold, and before Linux 6.9 does it here.
    """
    if not fds:
        return
    import _socket  # what else is in `socket` takes 7 ms to import

    with contextlib.ExitStack() as sockets:  # closed after the descriptors, queue first: the other starts the collector
        with contextlib.suppress(OSError):  # no sockets here, or too many descriptors in messages
            sender, queue = _socket.socketpair()
            sockets.callback(sender.close)
            sockets.callback(queue.close)
            sender.setblocking(False)
            sent = [queue.fileno(), *fds]
            for start in range(0, len(sent), _SCM_MAX_FD):
                part = sent[start : start + _SCM_MAX_FD]
                message = struct.pack(f"{len(part)}i", *part)
                sender.sendmsg([b"\0"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, message)])
        while fds:
            os.close(fds.pop())


# -- what an error means ---------------------------------------------------------------------------------------------


def filtered() -> OSError | None:
    """The error that a seccomp filter returns in the kernel's place, None where the call reaches the kernel.

    Proven by flags that no kernel knows: the kernel checks flags before any right and returns EINVAL (SYSCALL_DEFINE5
    of perf_event_open in kernel/events/core.c). A kernel without the call returns ENOSYS, and has no
    perf_event_paranoid.
    """
    if libc.syscall(_OPEN, 0, 0, -1, -1, _NO_FLAGS) >= 0:
        return None
    error = libc.last_error()
    if error.errno == errno.EACCES and (procfs.setting("kernel/perf_event_paranoid") or 0) >= _PARANOID_ALL:
        return None
    return None if error.errno == errno.EINVAL else error


def refusal(error: OSError, *, kernel: bool = False, everywhere: bool = False) -> Unavailable:
    """What a refused perf_event_open on a process of our own, or on all, means, and what lifts the refusal.

    error: the error of the call. kernel: whether the event was to count in the kernel too, which perf_event_paranoid =
    2 forbids. everywhere: whether it was to count all processes of a CPU or of a cgroup, which 1 forbids.
    """
    paranoid = procfs.setting("kernel/perf_event_paranoid")
    if paranoid is None:
        return _no_events(error)
    if (answer := filtered()) is not None:
        return Unavailable(
            f"perf_event_open is refused by a seccomp filter, that of a container or a service ({answer.strerror})",
            "start the container with --cap-add PERFMON, or with --security-opt seccomp=unconfined",
        )
    if error.errno in (errno.ENOSYS, errno.ENOENT, errno.EOPNOTSUPP):
        return _no_events(error)
    if error.errno not in (errno.EACCES, errno.EPERM):
        return Unavailable(f"page faults cannot be recorded: {error.strerror}", lifted_by(error))
    status = procfs.status(os.getpid())
    capabilities = int(status.get("CapEff", "0"), 16)
    least = _PARANOID_CPU if everywhere else _PARANOID_KERNEL if kernel else _PARANOID_ALL
    if paranoid >= least and not capabilities & _ENOUGH:
        python = os.path.realpath(sys.executable)
        of_all = ", and events on other users' processes need CAP_PERFMON" if everywhere else ""
        return Unavailable(
            f"kernel.perf_event_paranoid is {paranoid}{of_all}",
            f"sudo sysctl kernel.perf_event_paranoid={least - 1 if everywhere else 1}, "
            f"or sudo setcap cap_perfmon+ep {python}",
        )
    possibly = ", possibly a seccomp filter" if status.get("Seccomp") == "2" else ""
    return Unavailable(
        f"perf_event_open is refused ({error.strerror}) although our rights are enough: by what is not known{possibly}",
        "look for a security module (SELinux, AppArmor, lockdown) in the kernel's log: dmesg",
    )


def _no_events(error: OSError) -> Unavailable:
    return Unavailable(
        f"this kernel has no page fault events ({error.strerror})", "run a kernel built with CONFIG_PERF_EVENTS"
    )
