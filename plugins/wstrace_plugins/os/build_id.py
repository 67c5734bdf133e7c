"""The build-id of an ELF file: a hash of its content that its linker left in a note, by the file's own headers.

Source: elf(5), Elf64_Ehdr, Elf64_Phdr, Elf64_Nhdr; NT_GNU_BUILD_ID in glibc's elf.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

_HEADERS = {b"\x7fELF\1": (struct.Struct("<16s2HI5I6H"), struct.Struct("<8I"), (0, 1, 4)),
            b"\x7fELF\2": (struct.Struct("<16s2HIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ"), (0, 2, 5))}  # fmt: skip
_LITTLE = 1
_PT_NOTE, _NT_GNU_BUILD_ID = 4, 3
_MOST_SEGMENTS = 256
MOST_NOTE_BYTES = 4096
_MOST_ID_BYTES = 64


def of_notes(notes: bytes) -> str:
    """The build-id, in hexadecimal, among the notes of a segment; "" = it is not there."""
    at = 0
    while at + 12 <= len(notes):
        names, size, kind = struct.unpack_from("<III", notes, at)
        start = at + 12 + (names + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID and notes[at + 12 : at + 16] == b"GNU\0" and start + size <= len(notes):
            return notes[start : start + size].hex()
        at = start + (size + 3) // 4 * 4
    return ""


def of_file(read: Callable[[int, int], bytes]) -> str:
    """The build-id, in hexadecimal, of a little-endian ELF file; "" = it is none, has none, or contradicts itself.

    Args:
        read: gives up to so many bytes from an offset on; fewer where the file ends.
    """
    head = read(0, 64)
    forms = _HEADERS.get(head[:5])
    if forms is None or len(head) < 64 or head[5] != _LITTLE:
        return ""
    header, segment, (kind_at, offset_at, size_at) = forms
    _, _, _, _, _, table_at, _, _, _, step, count, *_ = header.unpack_from(head)
    if step != segment.size or count > _MOST_SEGMENTS:
        return ""
    table = read(table_at, step * count)
    for fields in segment.iter_unpack(table[: len(table) // step * step]):
        if fields[kind_at] == _PT_NOTE:
            found = of_notes(read(fields[offset_at], min(fields[size_at], MOST_NOTE_BYTES)))
            if found:
                return found if len(found) <= 2 * _MOST_ID_BYTES else ""
    return ""
