"""Source lines of addresses in an ELF file with debug information, through all functions that were inlined there.

The package `symbolic` (the extra `lines`) reads them; without it llvm-symbolizer or addr2line do, if installed.
They are given a file that is open and whose build-id was compared, never a path that could name another one by then.

Source: https://getsentry.github.io/symbolic; addr2line(1); llvm-symbolizer(1), `--output-style=GNU`.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from wstrace.errors import Unavailable
from wstrace.logs import log
from wstrace.places import SourceLine
from wstrace.plugins import own_platform
from wstrace.text import printable
from wstrace_plugins.symbols.demangle import demangle
from wstrace_plugins.symbols.image import ImageFile

MOST_BYTES = 1 << 30
MOST_ADDRESSES = 1 << 16
_MOST_INLINED = 64
#: symbolic's tables of the last files, by device, inode, size and change. That of node (90 MB) takes 0.8 s, and one
#: report needs it 88 times.
_MOST_TABLES = 4
_tables: dict[tuple[int, ...], Any] = {}
#: what is left at the interpreter's end would call functions of symbolic that are gone by then, which is told on stderr
atexit.register(_tables.clear)
#: The address space that it may take to make one. It took 15 MB for a file of 0.8 MB whose debug information is
#: compressed (`gcc -gz`), 44 MB for one of 4 MB (libc's of Debian), and 72 MB for libpython (30 MB, not compressed).
_ROOM, _ROOM_PER_BYTE = 16 << 20, 8
_lock = threading.Lock()
#: seconds for a whole file: of libpython with debug information (30 MB) symbolic needs 0.7
_PATIENCE = 30.0
#: both write for each address: itself, then a line with the function and one with `file:line` for each level
_TOOLS = (
    ("llvm-symbolizer", "--output-style=GNU", "--addresses", "--functions", "--inlines", "--demangle"),
    ("addr2line", "-a", "-f", "-i", "-C"),
)


def source_lines(file: ImageFile, addresses: Sequence[int]) -> list[tuple[SourceLine, ...]]:
    """For each address the source lines, innermost inlined function first; () where none is known."""
    if file.size > MOST_BYTES or len(addresses) > MOST_ADDRESSES:
        return [()] * len(addresses)
    with contextlib.suppress(ImportError, Unavailable):
        symbolic = importlib.import_module("symbolic")
        return _by_symbolic(symbolic, file, addresses)
    for name, *options in _TOOLS:
        if tool := shutil.which(name):
            return _by_tool([tool, *options], file, addresses)
    return [()] * len(addresses)


def _by_symbolic(symbolic: Any, file: ImageFile, addresses: Sequence[int]) -> list[tuple[SourceLine, ...]]:
    try:
        table = _table(symbolic, file.stream.fileno())
        return [
            tuple(
                _line(one.symbol, one.full_path, one.line)
                for one in table.lookup(address)[:_MOST_INLINED]
                if one.full_path  # code of the linker has a function, but no file
            )
            for address in addresses
        ]
    except Unavailable:
        raise
    except Exception:  # of a class that depends on its version: the file may be hostile
        log().debug("symbolic on %s", file.path, exc_info=True)
        return [()] * len(addresses)


def _table(symbolic: Any, fd: int) -> Any:
    """What maps the addresses of the file to source lines, made once for each file.

    Raises:
        Unavailable: a limit of this process may not leave what that takes. Where symbolic gets no memory, it aborts.
    """
    status = os.fstat(fd)
    key = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
    with _lock:
        if key not in _tables:
            if (platform := own_platform()) is not None:
                platform.room(_ROOM + _ROOM_PER_BYTE * status.st_size, "source lines by symbolic")
            [first, *_] = symbolic.Archive.open(f"/proc/self/fd/{fd}").iter_objects()
            if len(_tables) == _MOST_TABLES:
                del _tables[next(iter(_tables))]
            _tables[key] = first.make_symcache()
        return _tables[key]


def _by_tool(command: list[str], file: ImageFile, addresses: Sequence[int]) -> list[tuple[SourceLine, ...]]:
    found: dict[int, list[SourceLine]] = {}
    fd = file.stream.fileno()
    try:
        done = subprocess.run(
            [*command, "-e", f"/proc/self/fd/{fd}"],
            input="".join(f"{address:#x}\n" for address in addresses).encode(),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=(fd,), timeout=_PATIENCE, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        log().debug("%s on %s", command[0], file.path, exc_info=True)
        return [()] * len(addresses)
    here: list[SourceLine] = []
    function = ""
    for line in done.stdout.decode("utf-8", "backslashreplace").splitlines():
        if line.startswith("0x"):
            here, function = found.setdefault(int(line, 16), []), ""
        elif not function:
            function = line
        else:
            path, _, number = line.partition(" (discriminator")[0].rpartition(":")
            if not path.startswith("?") and len(here) < _MOST_INLINED:
                here.append(_line(function, path, int(number) if number.isdecimal() else 0))
            function = ""
    return [tuple(found.get(address, ())) for address in addresses]


def _line(function: str, path: str, line: int) -> SourceLine:
    return SourceLine(printable(demangle(function)), printable(path), line)
