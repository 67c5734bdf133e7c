"""Source lines of addresses in an ELF file with debug information, through all functions that were inlined there.

The package `symbolic` (the extra `lines`) reads them, in a process of its own (lines_helper.py) and from a copy: a file
that lies, or that shrinks while it is read, costs lines.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wstrace.errors import log
from wstrace.interfaces import SourceLine
from wstrace.text import printable
from wstrace_plugins.symbols.image import ImageFile, demangle

MOST_BYTES = 256 << 20  # of a file
MOST_ADDRESSES = 1 << 16
_MOST_ANSWER = 64 << 20  # bytes
_MOST_HELPERS = 4  # one report needs that of node 88 times
_MOST_LOST = 4  # files of which reading failed: after them, no more lines are read
_PATIENCE = 30.0  # seconds for an answer: of libpython with debug information (30 MB) symbolic needs 0.7
_PIECE = 1 << 20

#: by the process that started them and the file
_helpers: dict[tuple[int, ...], _Helper] = {}
_lost: set[tuple[int, ...]] = set()
_lock = threading.Lock()


def source_lines(file: ImageFile, addresses: Sequence[int]) -> list[tuple[SourceLine, ...]]:
    """For each address the source lines, innermost inlined function first; () where none is known."""
    nothing: list[tuple[SourceLine, ...]] = [()] * len(addresses)
    key = (os.getpid(), *file.identity)
    with _lock:
        if file.size > MOST_BYTES or len(addresses) > MOST_ADDRESSES or key in _lost or len(_lost) >= _MOST_LOST:
            return nothing
        try:
            if key not in _helpers:
                while len(_helpers) >= _MOST_HELPERS:
                    _helpers.pop(next(iter(_helpers))).close()
                _helpers[key] = _Helper(file)
            found = _helpers[key].lines(addresses)
        except ModuleNotFoundError:  # the extra is not installed
            return nothing
        except (OSError, ValueError) as error:
            _lost.add(key)
            if key in _helpers:
                _helpers.pop(key).close()
            log().warning("no source lines of %s: reading them failed (%s)", printable(file.path), error)
            return nothing
    return [
        tuple(SourceLine(printable(demangle(name)), printable(path), line) for name, path, line in own) for own in found
    ]


class _Helper:
    """A process that answers for one file. Raises ModuleNotFoundError, OSError, ImageError."""

    def __init__(self, file: ImageFile) -> None:
        package = importlib.util.find_spec("symbolic")
        if package is None or package.origin is None or not hasattr(os, "memfd_create"):
            raise ModuleNotFoundError("symbolic")
        copy = os.memfd_create("wstrace-lines")
        try:
            for at in range(0, file.size, _PIECE):
                os.write(copy, file.read(at, min(_PIECE, file.size - at)))
            folder = str(Path(package.origin).parents[1])
            words = [sys.executable, "-I", str(Path(__file__).with_name("lines_helper.py")), str(copy), folder]
            self._process: Any = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                  stderr=subprocess.DEVNULL, pass_fds=(copy,))  # fmt: skip
        finally:
            os.close(copy)

    def lines(self, addresses: Sequence[int]) -> list[list[tuple[str, str, int]]]:
        """Its answer. Raises OSError, ValueError: there is none in time, or none that can be believed."""
        timer = threading.Timer(_PATIENCE, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(list(addresses)).encode() + b"\n")
            self._process.stdin.flush()
            found = json.loads(self._process.stdout.readline(_MOST_ANSWER))
        finally:
            timer.cancel()
        if len(found) != len(addresses):
            raise ValueError("another number of answers")
        return [[(str(name), str(path), int(line)) for name, path, line in own] for own in found]

    def close(self) -> None:
        """Ends the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.kill()
        self._process.wait()


@atexit.register
def forget() -> None:
    """Ends the processes that read lines; files of which reading failed may be tried again."""
    _lost.clear()
    while _helpers:
        _helpers.popitem()[1].close()
