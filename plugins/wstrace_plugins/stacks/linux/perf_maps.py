"""Perf maps: the names that a JIT compiler or interpreter writes for the code that it makes, `/tmp/perf-PID.map`.

Each line is `START SIZE NAME` in hex; a later line for an address replaces an earlier one. The folder is everyone's, so
a map counts only if the process's user owns it and it was changed since the process began, and it is read from the
process's own root, in bounded pieces. A JVM writes its map when it ends (-XX:+DumpPerfMapAtExit): the root is held
from the first look on, so that the file is not searched by its name in ours, where it may be another process's.

Source: tools/perf/Documentation/jit-interface.txt of Linux.
"""

from __future__ import annotations

import contextlib
import os
import time

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import WstraceError
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.os.linux.named_file import open_named

#: bytes that are read of all maps of a trace together; a line counts as so many more, which it takes in memory
MOST_BYTES, LINE_BYTES = 128 << 20, 100
_PIECE, _MOST_NAME = 1 << 20, 1024
#: of the lines that begin before an address, so many are searched, the nearest ones
_NEAREST = 1024
#: a map may be older than its process by the resolution of the process's start
_SLACK_SECONDS = 0.1


class PerfMap:
    """The perf map of one process, read further as it grows.

    Args:
        pid: the process.
        since_ns: a time, on the monotonic clock, at which it had begun already; an older map is not its own.
    """

    def __init__(self, pid: int, since_ns: int) -> None:
        self._pid, self._since_ns = pid, since_ns
        self._fd = self._root = -1
        #: the file's name, its user, and the time since which it counts, once the root is held
        self._seen = "", 0, 0.0
        self._read = self.nbytes = 0
        self._rest = b""
        #: where the code of each line begins and ends, and the number of the line, sorted by the first
        self._lines: NDArray[np.int64] = np.zeros((3, 0), np.int64)
        self._names: list[bytes] = []

    def grow(self, room: int = MOST_BYTES) -> bool:
        """Reads what was added since the last call, as far as there is room; returns whether there was anything."""
        before, room, parts = self._read, self.nbytes + room, [self._lines]
        with contextlib.suppress(OSError, ValueError):
            if self._fd < 0:
                self._fd = self._open()
            while self.nbytes < room and (new := os.pread(self._fd, _PIECE, self._read)):
                lines = (self._rest + new).split(b"\n")
                self._rest = lines.pop()[: 2 * _MOST_NAME]
                self._read, self.nbytes = self._read + len(new), self.nbytes + len(new) + LINE_BYTES * len(lines)
                found = [*filter(None, map(_entry, lines))]
                rows = [(start, end, n) for n, (start, end, _) in enumerate(found, len(self._names))]
                parts.append(np.array(rows, np.int64).reshape(-1, 3).T)
                self._names += [name for *_, name in found]
        if len(parts) > 1:
            merged = np.concatenate(parts, axis=1)
            self._lines = merged.take(np.argsort(merged[0], kind="stable"), axis=1)
        return self._read > before

    def __len__(self) -> int:
        return len(self._names)

    def name(self, address: int) -> str | None:
        """The name of the code at an address, by the latest line; None where the map has none."""
        start, end, line = self._lines
        last = int(np.searchsorted(start, address, side="right"))
        near = slice(max(last - _NEAREST, 0), last)
        found = int(line[near][end[near] > address].max(initial=-1))
        return self._names[found].decode("utf-8", "backslashreplace").strip() if found >= 0 else None

    def close(self) -> None:
        """Closes the file."""
        for fd in (self._fd, self._root):
            if fd >= 0:
                os.close(fd)
        self._fd = self._root = -1

    def _look(self) -> None:
        """Holds the process's root, and who it is. Raises OSError."""
        root, inside, own = f"/proc/{self._pid}/root", str(self._pid), os.geteuid()
        try:
            began = procfs.stat_with_memory(self._pid).started
            status = procfs.status(self._pid)
            own = int(status["Uid"].split()[1])
            inside = status.get("NSpid", inside).split()[-1]  # the pid that the process itself knows
        except (WstraceError, KeyError):  # it has ended: only a map of our own user's is believed then
            root, began = "/", time.time() - (time.monotonic_ns() - self._since_ns) / 1e9
        self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._seen = f"/tmp/perf-{inside}.map", own, began - _SLACK_SECONDS  # noqa: S108

    def _open(self) -> int:
        """A descriptor of the map. Raises OSError, ValueError where there is none that may be believed."""
        if self._root < 0:
            self._look()
        name, own, since = self._seen
        fd = open_named(name, f"/proc/self/fd/{self._root}", links=False)
        found = os.fstat(fd)
        if found.st_uid == own and found.st_mtime > since:
            os.close(self._root)
            self._root = -1
            return fd
        os.close(fd)
        raise OSError("another user's map, or an older process's")


def _entry(line: bytes) -> tuple[int, int, bytes] | None:
    """Where a line's code begins and ends, and its name; None where it is no such line."""
    start, _, rest = line.partition(b" ")
    size, _, name = rest.partition(b" ")
    try:
        first, length = int(start, 16), int(size, 16)
    except ValueError:
        return None
    if not 0 < length < 1 << 40 or not 0 <= first < 1 << 62:
        return None
    return first, first + length, name[:_MOST_NAME]
