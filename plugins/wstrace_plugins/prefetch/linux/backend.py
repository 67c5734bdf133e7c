"""Reads files ahead on Linux, beside a command or before it.

posix_fadvise(POSIX_FADV_WILLNEED) begins to read exactly the pages of a range and returns; readahead(2) is the same
function of the kernel (mm/readahead.c, ksys_readahead()). What one call reads is cut without a word at the larger of
the device's read-ahead and its longest request (force_page_cache_ra()), so a range goes in pieces of 128 KiB, which is
the smallest read-ahead that kernels set by themselves. MADV_POPULATE_READ waits for the disk: it comes last, and only
where someone waits. docs/prefetch.md has the figures of each.

Source: posix_fadvise(2), readahead(2), madvise(2) MADV_POPULATE_READ (Linux 5.14).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import stat
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from wstrace_plugins.os import build_id
from wstrace_plugins.os.foreign import declare
from wstrace_plugins.os.linux.launcher import exec_refused, find_program
from wstrace_plugins.os.linux.openat2 import open_without_links, reopened
from wstrace_plugins.prefetch.backend import NotRegular
from wstrace_plugins.prefetch.start_list import File

_PIECE = 128 << 10
_WINDOW = 256 << 20  # bytes that are mapped at once
_MADV_POPULATE_READ = 22
_SECONDS = 60
_madvise = declare(None, "madvise", ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32)
_mmap = declare(None, "mmap", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_int32,
                ctypes.c_int32, ctypes.c_int64)  # fmt: skip
_munmap = declare(None, "munmap", ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t)
_NOT_MAPPED = ctypes.c_void_p(-1).value


def open_file(path: bytes) -> int:
    """See backend.Backend."""
    fd = open_without_links(path, os.O_PATH)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegular
    return reopened(fd)


def stamp(fd: int, path: bytes) -> File:
    """See backend.Backend."""
    status = os.fstat(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # else the kernel reads 16 KiB and more for the 64 bytes below

    def read(offset: int, length: int) -> bytes:
        try:
            return os.pread(fd, length, offset)
        except (OSError, OverflowError):  # headers may claim any offset
            return b""

    return File(path, status.st_size, status.st_mtime_ns, build_id.of_file(read))


def is_inode(fd: int, dev: int, ino: int) -> bool:
    """See backend.Backend."""
    from wstrace_plugins.os.linux.named_file import is_mapped  # It needs numpy.

    return is_mapped(fd, dev, ino)


def read_ahead(fd: int, offset: int, length: int) -> None:
    """See backend.Backend."""
    for at in range(offset, offset + length, _PIECE):
        os.posix_fadvise(fd, at, min(_PIECE, offset + length - at), os.POSIX_FADV_WILLNEED)


def wait_for(fd: int, offset: int, length: int) -> None:
    """See backend.Backend."""
    end = offset + length
    first = offset & -mmap.PAGESIZE
    for at in range(first, end, _WINDOW):
        n_bytes = min(_WINDOW, end - at)
        address = _mmap(None, n_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, at)
        if address == _NOT_MAPPED:
            return
        # Without MADV_RANDOM a page that is missing brings its neighbours.
        _madvise(address, n_bytes, mmap.MADV_RANDOM)
        _madvise(
            address, n_bytes, _MADV_POPULATE_READ
        )  # EINVAL before Linux 5.14, EFAULT where the file became shorter
        _munmap(address, n_bytes)


def beside(work: Callable[[], None]) -> None:
    """See backend.Backend."""
    if os.getpid() == 1:  # its descendants' orphans are its own, and a command need not expect any
        work()
        return
    with warnings.catch_warnings():
        # Python 3.12 warns of fork() beside threads, which are numpy's; the child only opens files.
        warnings.simplefilter("ignore", DeprecationWarning)
        with suppress(OSError):  # no room for a process: then nothing is read ahead
            if not (child := os.fork()):
                _work_as_orphan(work)
            os.waitpid(child, 0)


def _work_as_orphan(work: Callable[[], None]) -> NoReturn:
    """In a child: works in a child of its own, which is nobody's once this one has ended."""
    try:
        if not os.fork():
            for ending in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM):
                signal.signal(ending, signal.SIG_DFL)
            signal.alarm(_SECONDS)
            for number in (0, 1):
                with suppress(OSError):
                    os.close(number)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            work()
    finally:
        os._exit(0)


def load() -> float:
    """See backend.Backend."""
    return os.getloadavg()[0]


def find(command: Sequence[str]) -> str:
    """See backend.Backend."""
    return find_program(command[0])


def become(path: str, command: Sequence[str]) -> NoReturn:
    """See backend.Backend."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Python ignores these two signals from its start, and a program inherits that; execve() resets handlers itself.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execve(path, list(command), os.environ)
    except OSError as error:
        raise exec_refused(path, error.errno or 0) from None
