"""The id of a build of a PE image: the GUID and age of its PDB, else its time stamp and size.

Images are untrusted input, so every read is bounded.
Source: Microsoft Learn, "PE Format": COFF file header, optional header, .debug section.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

#: (offset, size) -> exactly `size` bytes; it may raise what its maker chooses.
Read = Callable[[int, int], bytes]

_PE32_PLUS = 0x20B
_DEBUG_DIRECTORY, _CODEVIEW = 6, 2
_MAX_SECTIONS, _MAX_DEBUG_ENTRIES = 4096, 64


def stamp_and_size(read: Read) -> tuple[int, int]:
    """TimeDateStamp and SizeOfImage, whose offsets are the same in a file and in memory.

    Raises:
        ValueError: there are no PE headers.
    """
    at = nt_headers(read)
    return struct.unpack("<I", read(at + 8, 4))[0], struct.unpack("<I", read(at + 24 + 56, 4))[0]


def by_stamp(stamp: int, size: int) -> str:
    """The id of an image without a PDB, in hexadecimal."""
    return f"{stamp:08x}{size:x}"


def of_file(read: Read) -> str:
    """The id of an image file, in hexadecimal.

    Raises:
        ValueError: there are no PE headers.
    """
    at = nt_headers(read)
    sections, optional_size = struct.unpack("<H", read(at + 6, 2))[0], struct.unpack("<H", read(at + 20, 2))[0]
    wide = struct.unpack("<H", read(at + 24, 2))[0] == _PE32_PLUS
    table = 24 + (112 if wide else 96)
    given = struct.unpack("<I", read(at + table - 4, 4))[0]
    if given > _DEBUG_DIRECTORY and table + 8 * (_DEBUG_DIRECTORY + 1) <= 24 + optional_size:
        rva, size = struct.unpack("<II", read(at + table + 8 * _DEBUG_DIRECTORY, 8))
        headers = read(at + 24 + optional_size, 40 * min(sections, _MAX_SECTIONS))
        if found := _pdb(read, place(headers, rva), size):
            return found
    return by_stamp(*stamp_and_size(read))


def nt_headers(read: Read) -> int:
    """The offset of the PE signature. Raises ValueError when there are no PE headers."""
    if read(0, 2) != b"MZ":
        raise ValueError("no MZ")
    at: int = struct.unpack("<I", read(0x3C, 4))[0]
    if read(at, 4) != b"PE\0\0":
        raise ValueError("no PE signature")
    return at


def place(section_headers: bytes, rva: int) -> int:
    """The file offset of an RVA; 0 when it lies in no section."""
    for at in range(0, len(section_headers), 40):
        start, raw_size, raw = struct.unpack_from("<III", section_headers, at + 12)
        if rva and start <= rva < start + raw_size:
            return int(raw + rva - start)
    return 0


def _pdb(read: Read, place: int, size: int) -> str:
    for at in range(place, place + min(size // 28, _MAX_DEBUG_ENTRIES) * 28 if place else place, 28):
        kind, length, _, pointer = struct.unpack("<4I", read(at + 12, 16))
        if kind == _CODEVIEW and length >= 24:
            record = read(pointer, 24)
            if record.startswith(b"RSDS"):
                return record[4:20].hex() + f"{struct.unpack_from('<I', record, 20)[0]:x}"
    return ""
