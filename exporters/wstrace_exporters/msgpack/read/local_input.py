"""LocalInput: a part of a trace in a local file; open_input() opens one wherever it is."""

from __future__ import annotations

import os
import stat
from typing import Any

from numpy.typing import NDArray

from wstrace.errors import TraceFileError, TraceFileNotFound
from wstrace_exporters.msgpack.read.input import Input
from wstrace_exporters.msgpack.storage.urls import Place, is_url

_SMALL_READ = 4096


def open_input(place: Place) -> Input:
    """Opens a part of a trace.

    Raises:
        TraceFileError: it cannot be opened, or is not a regular file.
        Unavailable: the package that the store needs is not installed.
    """
    if isinstance(place, str) and not is_url(place):
        return LocalInput(place)
    from wstrace_exporters.msgpack.read.remote_input import RemoteInput

    return RemoteInput.opened(place)


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file; also a FIFO, which would wait for its writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class LocalInput(Input):
    """A regular file.

    Raises:
        TraceFileError: the file cannot be opened, or is not a regular file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = open(path, "rb", buffering=0, opener=_without_waiting)  # noqa: SIM115  close() is ours
        except FileNotFoundError:
            raise TraceFileNotFound(path) from None
        except OSError as error:
            raise TraceFileError(f"cannot read {path}: {error.strerror}") from None
        status = os.fstat(self._file.fileno())
        if not stat.S_ISREG(status.st_mode):
            self._file.close()
            raise TraceFileError(f"{path} is not a regular file", "save it to a file first")
        self.size = status.st_size
        self._small = memoryview(b"")
        self._small_at = 0
        self._large = bytearray()

    def read(self, at: int, n: int) -> memoryview:
        """n bytes at an offset, fewer at the end of the file; valid until the next read."""
        begin = at - self._small_at
        if begin >= 0 and begin + n <= len(self._small):
            return self._small[begin : begin + n]
        try:
            self._file.seek(at)
            if n <= _SMALL_READ:
                self._small, self._small_at = memoryview(self._file.read(_SMALL_READ) or b""), at
                return self._small[:n]
            if len(self._large) < n:
                self._large = bytearray(n)
            view, got = memoryview(self._large)[:n], 0
            while got < n and (more := self._file.readinto(view[got:])):
                got += more
        except OSError as error:
            raise TraceFileError(f"cannot read {self.path}: {error.strerror}") from None
        return view[:got]

    def ahead(self, offsets: NDArray[Any], lengths: NDArray[Any]) -> Input:
        """This input: the system reads ahead."""
        return self

    def for_thread(self) -> Input:
        """Another one, because an input reads into one buffer."""
        return LocalInput(self.path)

    def check(self) -> None:
        """Does nothing: what is wrong with a local file is counted as damage."""

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
