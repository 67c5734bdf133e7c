r"""The list of a start: byte ranges of files in order of first touch, as text, version 1.

The first line is `wstrace-prefetch 1`. Each other line is one range: `path size mtime_ns build_id offset length`, with
one space between two fields, and ends with a line feed, the last one too. The path is absolute, its bytes from 0x21 to
0x7e but the backslash as they are, each other one as `\xHH`; the numbers are decimal; the build-id is hexadecimal, or
`-` of a file that has none. docs/prefetch.md describes it for others.

Nothing in a list is trusted: a line that is not exactly of this form is refused, with its number.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from wstrace.errors import UsageError

HEADER = b"wstrace-prefetch 1\n"
#: Bytes between two parts of a file that are wanted, up to which they become one range: a request of the disk more is
#: dearer than to read these along.
GAP = 16 << 10
#: The ranges of one list: 1 GiB in pages of 4 KiB, no two of them neighbours.
MOST_RANGES = 1 << 18
_MOST_BYTES = 128 << 20
_MOST_PATH = 4096  # PATH_MAX
_MOST_NUMBER = (1 << 63) - 1
_LINE = re.compile(
    rb"(/(?:[!-\[\]-~]|\\x[0-9a-f]{2})*) (0|[1-9]\d{0,18}) (0|-?[1-9]\d{0,18}) (-|(?:[0-9a-f]{2}){1,64})"
    rb" (0|[1-9]\d{0,18}) ([1-9]\d{0,18})"
)
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_TO_ESCAPE = re.compile(rb"[^!-\[\]-~]")


class File(NamedTuple):
    """A file, and what tells whether it is still the one that the list was made of.

    path: absolute, without `.` and `..`. size: in bytes. mtime_ns: of its last change, wall time in ns. build_id: of an
    ELF file, in hexadecimal; "" = it has none.
    """

    path: bytes
    size: int
    mtime_ns: int
    build_id: str


class Range(NamedTuple):
    """`length` bytes of a file from `offset` on, within its size."""

    file: File
    offset: int
    length: int


def encoded(ranges: Iterable[Range]) -> Iterator[bytes]:
    """The lines of a list, header first."""
    yield HEADER
    for file, offset, length in ranges:
        path = _TO_ESCAPE.sub(lambda found: b"\\x%02x" % found[0][0], file.path)
        yield b"%b %d %d %b %d %d\n" % (path, file.size, file.mtime_ns, file.build_id.encode() or b"-", offset, length)


def decoded(text: bytes, name: str) -> list[Range]:
    """The ranges of a list.

    Args:
        text: all of it. name: the list's, for what is said of it.

    Raises:
        UsageError: it is no such list, or one that this version does not know; the error names the line.
    """
    if not text.startswith(HEADER):
        raise UsageError(f"{name} is no prefetch list of version 1", "make it anew: wstrace prefetch x.wst -o FILE")
    if text.count(b"\n") - 1 > MOST_RANGES:
        raise UsageError(f"{name} has more than {MOST_RANGES:,} ranges", "make it anew with a larger --gap")
    if not text.endswith(b"\n"):
        raise UsageError(f"{name} is cut off in its last line", "make it anew: wstrace prefetch x.wst -o FILE")
    found: list[Range] = []
    files: dict[tuple[bytes, ...], File] = {}
    for number, line in enumerate(text[len(HEADER) : -1].split(b"\n") if len(text) > len(HEADER) else (), 2):
        fields = _LINE.fullmatch(line)
        if fields is None:
            raise _wrong(name, number, "is not `path size mtime_ns build_id offset length`")
        key = fields.group(1, 2, 3, 4)
        file = files.get(key)
        if file is None:
            file = files[key] = _file(key, name, number)
        offset, length = int(fields[5]), int(fields[6])
        if offset + length > file.size:
            raise _wrong(name, number, "has a range that ends behind the file's end")
        found.append(Range(file, offset, length))
    return found


def read(path: str) -> list[Range]:
    """The ranges of the list in a file. Raises UsageError: it cannot be read, or is no list."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"cannot read the list {path}: it is no regular file")
            text = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the list {path}: {getattr(error, 'strerror', error)}") from None
    if len(text) > _MOST_BYTES:
        raise UsageError(f"{path} is longer than {_MOST_BYTES >> 20} MiB: no prefetch list")
    return decoded(text, path)


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file; a FIFO without a writer, too."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _file(fields: tuple[bytes, ...], name: str, number: int) -> File:
    path = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), fields[0])
    if b"\0" in path or len(path) > _MOST_PATH or not {b"", b".", b".."}.isdisjoint(path[1:].split(b"/")):
        raise _wrong(name, number, "has a path that is not the whole name of a file")
    size, changed = int(fields[1]), int(fields[2])
    if size > _MOST_NUMBER or abs(changed) > _MOST_NUMBER:
        raise _wrong(name, number, "has a number that no file has")
    return File(path, size, changed, "" if fields[3] == b"-" else fields[3].decode())


def _wrong(name: str, number: int, why: str) -> UsageError:
    return UsageError(f"{name} is no prefetch list: line {number} {why}")
