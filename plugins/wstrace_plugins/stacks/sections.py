"""The section headers of an ELF file: for what its program headers do not tell.

Source: elf(5).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

#: read(offset, size): that many bytes of the file, fewer at its end
Read = Callable[[int, int], bytes]

MOST_SECTIONS = 256
MOST_NAME_BYTES = 1 << 16

_SECTION = struct.Struct("<IIQQQQIIQQ")


class Section(NamedTuple):
    """A section header: the name is an index into the names, the rest is as in the file."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


def sections_of(read: Read) -> list[Section]:
    """The section headers; none where they are more than MOST_SECTIONS. Raises struct.error for a file cut short."""
    head = read(0, 64)
    (at,) = struct.unpack_from("<Q", head, 40)
    step, count = struct.unpack_from("<HH", head, 58)
    if step != _SECTION.size or count > MOST_SECTIONS:
        return []
    return [Section(*row) for row in _SECTION.iter_unpack(read(at, step * count))]


def section_named(read: Read, name: bytes) -> Section | None:
    """The first section of that name; None where there is none. Raises struct.error, IndexError."""
    sections = sections_of(read)
    if not sections:
        return None
    (names_in,) = struct.unpack_from("<H", read(0, 64), 62)
    names = read(sections[names_in].offset, min(sections[names_in].size, MOST_NAME_BYTES))
    for section in sections:
        if names[section.name : section.name + len(name) + 1] == name + b"\0":
            return section
    return None
