"""Linux's C library, for calls that Python does not offer: ioctl(2), mallopt(3) and others, and system calls by number.

Source: ioctl(2), mallopt(3), malloc_trim(3), sbrk(2), syscall(2); Linux scripts/syscall.tbl (the common table) and
arch/*/kernel/syscalls/*.tbl.
"""

from __future__ import annotations

import ctypes
import os
import platform

from wstrace_plugins.os.foreign import Foreign

#: ioctl(descriptor, request, address or number): returns -1 when refused, and last_error() has the errno.
ioctl = Foreign(None, "ioctl", ctypes.c_int32, ctypes.c_int32, ctypes.c_ulong, ctypes.c_void_p)
#: mallopt(parameter, value), which the C library musl has not.
mallopt = Foreign(None, "mallopt", ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)
#: malloc_trim(bytes that stay at the top), which musl has not, either: gives free memory back.
malloc_trim = Foreign(None, "malloc_trim", ctypes.c_int32, ctypes.c_size_t)
#: malloc(bytes): the address, or None. free(address).
malloc = Foreign(None, "malloc", ctypes.c_void_p, ctypes.c_size_t)
free = Foreign(None, "free", None, ctypes.c_void_p)
#: sbrk(0): the end of the heap.
sbrk = Foreign(None, "sbrk", ctypes.c_void_p, ctypes.c_ssize_t)
#: prctl(option, ...): returns -1 when refused.
prctl = Foreign(None, "prctl", ctypes.c_int32, ctypes.c_int32, *[ctypes.c_ulong] * 4)
_KCMP_VM = 1
_syscall = Foreign(None, "syscall", ctypes.c_int64, *[ctypes.c_int64] * 7)


def syscall(number: int, *arguments: int) -> int:
    """Makes a system call and returns its result: -1 when refused, and last_error() has the errno.

    number: see number_of(). arguments: up to six, addresses as numbers. Raises Unavailable: there is no C library with
    syscall(2).
    """
    result: int = _syscall(number, *arguments, *[0] * (6 - len(arguments)))
    return result


def number_of(common: int, **others: int) -> int:
    """The number of a system call on this machine.

    common: the number where the kernel uses the common table (aarch64, riscv64, loongarch64). others: the numbers of
    x86_64, ppc64le and s390x where they differ from it.
    """
    return others.get(platform.machine(), common)


def same_memory(pid: int, other: int) -> bool:
    """True when kcmp(2) says that both share memory; False where it is not permitted or one of them has ended."""
    return syscall(number_of(272, x86_64=312), pid, other, _KCMP_VM) == 0


def last_error() -> OSError:
    """The error of the last refused call, as the exception that Python uses: FileNotFoundError, PermissionError ..."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
