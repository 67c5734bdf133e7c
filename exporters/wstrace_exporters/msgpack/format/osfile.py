"""Trace files on the operating system: locking, truncating, syncing; clocks and host. Nothing else here knows the OS.

Files are written by `os.write`, unbuffered, so that everything a write() returned for survives kill -9.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import platform
import sys
import time
from typing import Any

from wstrace.clock import ClockAnchor
from wstrace.errors import OutputError
from wstrace.output_file import open_output, remove

_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)


def _module(name: str) -> Any:
    """A module that not every system has, or None. This checks for the module, not for the system's name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_fcntl, _msvcrt = _module("fcntl"), _module("msvcrt")
_fdatasync = getattr(os, "fdatasync", os.fsync)
_LOCK_AT = 1 << 40  # Windows locks bytes, not files: this one is far beyond any end (Wine refuses positions past 2^62).


CLOCK_NAME = "QueryPerformanceCounter" if _msvcrt else "CLOCK_MONOTONIC"


def clocks() -> dict[str, int]:
    """{monotonic, realtime, boottime} read together, in ns; boottime only where the system has it."""
    at, wall = ClockAnchor().marks[0]
    read = {"monotonic": at, "realtime": wall}
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is not None and hasattr(time, "clock_gettime_ns"):
        read["boottime"] = time.clock_gettime_ns(boottime)
    return read


def boot_id() -> str:
    """Identifies this boot of this machine; "" where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""


def page_size() -> int:
    """The size of a page in bytes."""
    return int(mmap.PAGESIZE)


def host() -> dict[str, str | int]:
    """The description of the machine for the header."""
    uname = platform.uname()
    return {
        "name": uname.node,
        "system": uname.system,
        "release": uname.release,
        "machine": uname.machine,
        "cpus": os.cpu_count() or 0,
    }


class OutputFile:
    """One file open for writing, exclusively by this process.

    path: "-" is standard output. force: an existing file may be overwritten. Raises OutputError: another writer has it,
    standard output is closed or a terminal, or as wstrace.output_file.open_output().
    """

    def __init__(self, path: str, *, force: bool) -> None:
        self.path = path
        self.created = False
        if path == "-":
            self.path = "standard output"
            if sys.__stdout__ is None:  # It was closed when Python began: descriptor 1 may be another file's by now.
                raise OutputError("standard output is closed", "pipe it, or write -o FILE")
            if os.isatty(1):
                raise OutputError("standard output is a terminal, and a trace is binary", "pipe it, or write -o FILE")
            self.fd = os.dup(1)
            if _msvcrt is not None:  # Otherwise every 0A would become 0D 0A.
                _msvcrt.setmode(self.fd, getattr(os, "O_BINARY", 0))
            self.regular = False
        else:
            self.fd, self.created, self.regular = open_output(path, force=force)
        if self.regular:
            try:
                self._take()
            except BaseException:
                os.close(self.fd)
                raise

    def _take(self) -> None:
        """Locks the file before truncating it: another writer's file must not lose a byte."""
        try:
            _lock(self.fd)
        except OSError:
            raise OutputError(f"{self.path} is being written by another wstrace", "choose another name") from None
        try:
            os.ftruncate(self.fd, 0)
        except OSError as error:
            if self.created:
                remove(self.path)
            raise OutputError(f"cannot write {self.path}: {error.strerror or error}") from None

    def write(self, data: bytes | memoryview) -> int:
        """Writes; returns the number of bytes that the system took, maybe fewer than given. Raises OSError."""
        return os.write(self.fd, data)

    def cut(self, size: int) -> None:
        """Truncates a regular file to that size and continues there. Raises OSError."""
        os.ftruncate(self.fd, size)
        os.lseek(self.fd, size, os.SEEK_SET)

    def sync(self, *, whole: bool = False) -> None:
        """Syncs the data (whole: and all metadata) to the disk. Raises OSError."""
        if self.regular:
            (os.fsync if whole else _fdatasync)(self.fd)

    def close(self) -> None:
        """Closes it and releases the lock. Raises OSError if the system reports only now that a write failed."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(InterruptedError):  # It is closed nevertheless: close(2).
                os.close(fd)

    def finish(self, *, sync: bool = True) -> str:
        """Syncs all of it to the disk, if wanted, and closes it; returns what failed, or ""."""
        failed = ""
        for name, call in {"fsync": lambda: self.sync(whole=True), "close": self.close}.items():
            try:
                if sync or name == "close":
                    call()
            except OSError as error:
                failed = failed or f"{name} failed: {error.strerror or error}"
        if self.regular and sync:
            _sync_directory(self.path)
        return failed


def _sync_directory(path: str) -> None:
    """Makes a new name in the path's directory durable."""
    with contextlib.suppress(OSError):  # Windows cannot open a directory, and some file systems cannot sync one.
        folder = os.path.dirname(os.path.abspath(path))
        fd = os.open(folder, os.O_RDONLY | _BINARY | getattr(os, "O_DIRECTORY", 0))  # a FIFO in its place would wait
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def is_being_written(path: str) -> bool:
    """Whether a writer holds the file's lock now."""
    try:
        fd = os.open(path, os.O_RDONLY | _BINARY | getattr(os, "O_NONBLOCK", 0))  # a FIFO would wait for its writer
    except OSError:
        return False
    try:
        if _fcntl is None:
            _lock(fd)  # Windows's locks are not shared: of two that try at once, one gets "yes", and tries again.
        else:
            _fcntl.flock(fd, _fcntl.LOCK_SH | _fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _lock(fd: int) -> None:
    """Ensures a single writer: raises OSError when another has the file. The system frees a killed process's lock."""
    if _fcntl is None:
        at = os.lseek(fd, 0, os.SEEK_CUR)
        os.lseek(fd, _LOCK_AT, os.SEEK_SET)
        try:
            _msvcrt.locking(fd, _msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(fd, at, os.SEEK_SET)
    else:
        try:
            _fcntl.flock(fd, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # Some network file systems have no locks, which is no reason not to write.
