"""Headers and section table of a PE file.

Source: Microsoft Learn, "PE Format"; winnt.h: IMAGE_NT_HEADERS, IMAGE_SECTION_HEADER.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.symbols.image import SECTION, ImageError, Readable

MAX_SECTIONS = 4096  # the loader takes 96; tools write more into files that are never loaded
AMD64, ARM64 = 0x8664, 0xAA64  # IMAGE_FILE_MACHINE_*
EXPORT_DIRECTORY, EXCEPTION_DIRECTORY = 0, 3
_PE32, _PE32_PLUS = 0x10B, 0x20B
_EXECUTE = 0x2000_0000  # IMAGE_SCN_MEM_EXECUTE

SECTION_HEADER = np.dtype([
    ("Name", "S8"), ("VirtualSize", "<u4"), ("VirtualAddress", "<u4"), ("SizeOfRawData", "<u4"),
    ("PointerToRawData", "<u4"), ("PointerToRelocations", "<u4"), ("PointerToLinenumbers", "<u4"),
    ("NumberOfRelocations", "<u2"), ("NumberOfLinenumbers", "<u2"), ("Characteristics", "<u4"),
])  # fmt: skip
assert SECTION_HEADER.itemsize == 40  # IMAGE_SECTION_HEADER


class PeHeaders(NamedTuple):
    """What the NT headers say."""

    machine: int
    base: int
    size: int
    stamp: int
    symbols: int
    symbol_count: int
    directories: list[tuple[int, int]]
    sections: NDArray[Any]


def read_headers(file: Readable) -> PeHeaders:
    """The headers. Raises ImageError when they are cut off or say what cannot be."""
    if file.read(0, 2) != b"MZ":
        raise ImageError(f"{file.path} does not begin with MZ")
    at = struct.unpack("<I", file.read(0x3C, 4))[0]  # e_lfanew
    signature, machine, count, stamp, symbols, symbol_count, optional_size, _ = struct.unpack(
        "<4sHHIIIHH", file.read(at, 24)
    )
    if signature != b"PE\0\0":
        raise ImageError(f"{file.path} has no PE signature")
    if not 0 < count <= MAX_SECTIONS:
        raise ImageError(f"{file.path} says that it has {count} sections")
    optional = file.read(at + 24, optional_size)
    try:
        magic = struct.unpack_from("<H", optional)[0]
        if magic not in (_PE32, _PE32_PLUS):
            raise ImageError(f"{file.path}: optional header of kind {magic:#x}")
        wide = magic == _PE32_PLUS
        base = struct.unpack_from("<Q" if wide else "<I", optional, 24 if wide else 28)[0]
        size = struct.unpack_from("<I", optional, 56)[0]
        given = struct.unpack_from("<I", optional, 108 if wide else 92)[0]
    except struct.error:
        raise ImageError(f"{file.path}: its optional header is cut off") from None
    table = optional[112 if wide else 96 :]
    directories = [struct.unpack_from("<II", table, 8 * n) for n in range(min(given, 16, len(table) // 8))]
    sections = np.frombuffer(file.read(at + 24 + optional_size, count * SECTION_HEADER.itemsize), SECTION_HEADER)
    return PeHeaders(machine, base, size, stamp, symbols, symbol_count, directories, sections)


def section_rows(headers: PeHeaders, strings: bytes) -> tuple[NDArray[Any], tuple[str, ...]]:
    """SECTION rows and names. A section ends where its larger size ends, or where the next one begins.

    The article tests `rva <= endRVA`, which gives the byte behind a section to it; here the end is exclusive.
    """
    table = headers.sections
    start = table["VirtualAddress"].astype("<u8")
    end = start + np.maximum(table["VirtualSize"], table["SizeOfRawData"]).astype("<u8")
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.minimum(end[order], np.uint64(max(headers.size, 1)))
    end[:-1] = np.minimum(end[:-1], start[1:])
    rows = np.zeros(len(order), SECTION)
    rows["start"], rows["end"] = start + np.uint64(headers.base), np.maximum(end, start) + np.uint64(headers.base)
    rows["number"] = order + 1
    return rows, tuple(_section_name(name, strings) for name in table["Name"][order].tolist())


def _section_name(name: bytes, strings: bytes) -> str:
    """The name of a section; a name of more than 8 bytes is `/123` in the table, and among the symbols' names."""
    if name[:1] == b"/" and name[1:].isdigit():
        at = int(name[1:])
        name = strings[at : at + 256].partition(b"\0")[0] or name
    return name.decode("utf-8", "backslashreplace")


def is_code(headers: PeHeaders, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of the SECTION rows that are executable."""
    code: NDArray[np.bool_] = headers.sections["Characteristics"][rows["number"] - 1] & np.uint32(_EXECUTE) != 0
    return code


def mapped(file: Readable, headers: PeHeaders, rva: int) -> tuple[int, int]:
    """(place in the file, bytes of the section from there on) of an RVA; ImageError when no section has it."""
    for section in headers.sections:
        start, size = int(section["VirtualAddress"]), int(section["SizeOfRawData"])
        if start <= rva < start + size:
            place = int(section["PointerToRawData"]) + rva - start
            return place, min(size - (rva - start), max(file.size - place, 0))
    raise ImageError(f"{file.path}: RVA {rva:#x} lies in no section")
