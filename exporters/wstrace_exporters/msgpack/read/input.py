"""The bytes of one part of a trace: a local file, standard input, or (remote_input.py) an object of a store."""

from __future__ import annotations

import os
import stat
import sys
import threading
from typing import TYPE_CHECKING

from wstrace.errors import TraceFileError, TraceFileNotFound
from wstrace_exporters.msgpack.storage.urls import Place

if TYPE_CHECKING:
    from wstrace_exporters.msgpack.read.remote_input import RemoteInput


def open_input(place: Place) -> LocalInput | RemoteInput:
    """Opens a part of a trace.

    Raises TraceFileError: it cannot be opened, or is not a regular file; Unavailable: the package that the store needs
    is not installed.
    """
    if isinstance(place, str):
        return LocalInput(place)
    from wstrace_exporters.msgpack.read.remote_input import RemoteInput

    return RemoteInput(place)


def _regular(path: str, flags: int) -> int:
    """Opens a regular file, and no other, as a device may act when it is opened. Raises TraceFileError: it is none."""
    refused = TraceFileError(f"{path} is not a regular file", "save it to a file first")
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise refused
    fd = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # what has become a FIFO meanwhile would wait
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise refused
    return fd


class LocalInput:
    """A regular file, which several threads may read.

    path: its path. size: bytes. Raises TraceFileError: the file cannot be opened, or is not a regular file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = open(path, "rb", opener=_regular)  # noqa: SIM115  close() is ours
        except FileNotFoundError:
            raise TraceFileNotFound(path) from None
        except OSError as error:
            raise TraceFileError(f"cannot read {path}: {error.strerror}") from None
        self.size = os.fstat(self._file.fileno()).st_size
        self._lock = threading.Lock()

    def read(self, at: int, n: int) -> memoryview:
        """n bytes at an offset, fewer at the end of the file."""
        try:
            with self._lock:  # DuckDB reads the tables of a query on threads of its own
                self._file.seek(at)
                return memoryview(self._file.read(n))
        except OSError as error:
            raise TraceFileError(f"cannot read {self.path}: {error.strerror}") from None

    def check(self) -> None:
        """Does nothing: what is wrong with a local file is counted as damage."""

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class StandardInput:
    """A copy of standard input, up to its end, in a temporary file that close() removes: reading needs random access.

    path: the path of the copy. Raises TraceFileError: standard input is a terminal, or cannot be copied.
    """

    def __init__(self) -> None:
        stream = sys.stdin.buffer if sys.stdin is not None else None
        if stream is None or stream.isatty():
            raise TraceFileError(
                "standard input is no trace", "pipe one into it: wstrace run -o - -- COMMAND | wstrace report -"
            )
        import shutil
        from tempfile import TemporaryDirectory  # with shutil 6 ms, which no other input needs

        self._folder = TemporaryDirectory(prefix="wstrace-")
        self.path = os.path.join(self._folder.name, "standard input")
        try:
            with open(self.path, "xb") as file:
                shutil.copyfileobj(stream, file)
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError):
                raise
            why = f"cannot keep standard input in {self._folder.name}: {error.strerror or error}"
            raise TraceFileError(why, "write it to a file, or set TMPDIR to a folder with more room") from None

    def close(self) -> None:
        """Removes the copy."""
        self._folder.cleanup()
