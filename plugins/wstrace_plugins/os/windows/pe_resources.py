"""Reads named data (RT_RCDATA) from the resources of a PE file.

PE files are untrusted input: every read and every count is bounded, and no table is entered twice.
Source: Microsoft Learn, "PE Format": the .rsrc section.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from wstrace_plugins.os.windows.image_id import Read, nt_headers, place

_RESOURCE_DIRECTORY, _RT_RCDATA = 2, 10
_PE32_PLUS = 0x20B
_MAX_ENTRIES, _MAX_SECTIONS = 1024, 96
_HIGH = 0x8000_0000  # in a name: it is a text; in an offset: it leads to a table


def named_data(file: BinaryIO, names: Sequence[str], most: int) -> dict[str, bytes]:
    """The resources with these names in their first languages, if they have at most `most` bytes; possibly {}."""

    def read(at: int, size: int) -> bytes:
        file.seek(at)
        found = file.read(size)
        if len(found) != size:
            raise ValueError("the file is cut off")
        return found

    try:
        return dict(_found(read, set(names), most))
    except (ValueError, struct.error):
        return {}


def _found(read: Read, names: set[str], most: int) -> Iterator[tuple[str, bytes]]:
    at = nt_headers(read)
    sections, optional = struct.unpack("<H", read(at + 6, 2))[0], struct.unpack("<H", read(at + 20, 2))[0]
    wide = struct.unpack("<H", read(at + 24, 2))[0] == _PE32_PLUS
    directory = at + 24 + (112 if wide else 96) + 8 * _RESOURCE_DIRECTORY
    headers = read(at + 24 + optional, 40 * min(sections, _MAX_SECTIONS))
    root = place(headers, struct.unpack("<I", read(directory, 4))[0])
    if not root:
        return
    for kind, types in _entries(read, root, 0):
        if kind != _RT_RCDATA or not types & _HIGH:
            continue
        for name, languages in _entries(read, root, types & ~_HIGH):
            if not name & _HIGH or not languages & _HIGH:
                continue
            text = _name(read, root + (name & ~_HIGH))
            first = next(_entries(read, root, languages & ~_HIGH), (0, _HIGH))[1]
            if text in names and not first & _HIGH:
                rva, size = struct.unpack("<II", read(root + first, 8))
                if (start := place(headers, rva)) and size <= most:
                    yield text, read(start, size)


def _entries(read: Read, root: int, at: int) -> Iterator[tuple[int, int]]:
    """Yields (name or number, offset) of each entry of a table."""
    count = sum(struct.unpack("<HH", read(root + at + 12, 4)))
    yield from struct.iter_unpack("<II", read(root + at + 16, 8 * min(count, _MAX_ENTRIES)))


def _name(read: Read, at: int) -> str:
    length = struct.unpack("<H", read(at, 2))[0]
    return read(at + 2, 2 * min(length, 64)).decode("utf-16-le", "replace")
