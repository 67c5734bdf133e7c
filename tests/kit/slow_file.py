"""A file whose every page takes a known time to read: a FUSE file system of one file, served by a thread."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_IN, _OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
_GETATTR, _OPEN, _READ, _RELEASE, _FLUSH, _INIT = 3, 14, 15, 18, 25, 26
_REGULAR = 0o100444
_DETACH = 2


class _Server(threading.Thread):
    """Answers the kernel until the file system is gone. The mount point itself is the file."""

    def __init__(self, fd: int, size: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self._fd, self._size, self._seconds = fd, size, seconds

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while request := os.read(self._fd, 1 << 20):
                _, operation, unique, *_ = _IN.unpack_from(request)
                answer = self._answer(operation, request[_IN.size :])
                error, data = (-errno.ENOSYS, b"") if answer is None else (0, answer)
                os.write(self._fd, _OUT.pack(_OUT.size + len(data), error, unique) + data)

    def _answer(self, operation: int, body: bytes) -> bytes | None:
        if operation == _INIT:  # no readahead: a fault reads its page only
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0)
        if operation == _GETATTR:
            return struct.pack("<QII QQQ QQQ III IIIIIII", 60, 0, 0, 1, self._size, self._size // 512, 0, 0, 0, 0, 0, 0,
                               _REGULAR, 1, 0, 0, 0, 4096, 0)  # fmt: skip
        if operation == _OPEN:
            return bytes(16)
        if operation == _READ:
            time.sleep(self._seconds)
            _, offset, size = struct.unpack_from("<QQI", body)
            return bytes(min(size, max(self._size - offset, 0)))
        return b"" if operation in (_FLUSH, _RELEASE) else None


@contextlib.contextmanager
def slow_file(folder: Path, pages: int, seconds: float) -> Iterator[Path]:
    """A file of so many pages, of which each is read by itself, and takes so long. Skips where it cannot be mounted."""
    path = folder / "slow"
    path.touch()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fd = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"needs /dev/fuse: {error.strerror}")
    try:
        options = f"fd={fd},rootmode={_REGULAR:o},user_id=0,group_id=0,allow_other,max_read=4096"
        if libc.mount(b"wstrace-test", os.fsencode(path), b"fuse", 0, options.encode()):
            pytest.skip(f"FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
        try:
            server = _Server(fd, pages * 4096, seconds)
            server.start()
            yield path
        finally:
            libc.umount2(os.fsencode(path), _DETACH)
            server.join(5)
    finally:
        os.close(fd)
