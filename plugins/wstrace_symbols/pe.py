"""PE files as an Image: section table, exports, the COFF symbols that mingw leaves in.

The offsets that a mapping of a PE image counts are RVAs: Windows maps an image as a whole. Everything in the file is
hostile input: each read is bounded and checked, each count is limited before it is used.

Source: Microsoft Learn, "PE Format"; winnt.h: IMAGE_NT_HEADERS, IMAGE_SECTION_HEADER, IMAGE_EXPORT_DIRECTORY.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace_symbols import dbghelp
from wstrace_symbols.image import SECTION, SEGMENT, SYMBOL, Image, ImageError, ImageFile, covering
from wstrace_symbols.pe_names import readable

MAX_SECTIONS = 4096  # the loader takes 96; tools write more into files that are never loaded
MAX_EXPORTS = 1 << 20
MAX_COFF_SYMBOLS = 1 << 20
MAX_NAMES = 32 << 20  # bytes

_PE32, _PE32_PLUS = 0x10B, 0x20B
_EXPORT_DIRECTORY, _DEBUG_DIRECTORY = 0, 6
_CODEVIEW = 2
_EXECUTE = 0x2000_0000  # IMAGE_SCN_MEM_EXECUTE

SECTION_HEADER = np.dtype([
    ("Name", "S8"), ("VirtualSize", "<u4"), ("VirtualAddress", "<u4"), ("SizeOfRawData", "<u4"),
    ("PointerToRawData", "<u4"), ("PointerToRelocations", "<u4"), ("PointerToLinenumbers", "<u4"),
    ("NumberOfRelocations", "<u2"), ("NumberOfLinenumbers", "<u2"), ("Characteristics", "<u4"),
])  # fmt: skip
assert SECTION_HEADER.itemsize == 40  # IMAGE_SECTION_HEADER

COFF_SYMBOL = np.dtype([
    ("Zeroes", "<u4"), ("Offset", "<u4"), ("Value", "<u4"), ("SectionNumber", "<i2"), ("Type", "<u2"),
    ("StorageClass", "u1"), ("NumberOfAuxSymbols", "u1"),
])  # fmt: skip
assert COFF_SYMBOL.itemsize == 18  # IMAGE_SYMBOL
_FUNCTION, _EXTERNAL, _STATIC = 0x20, 2, 3


class Headers(NamedTuple):
    """What the NT headers say."""

    base: int
    size: int
    stamp: int
    symbols: int
    symbol_count: int
    directories: list[tuple[int, int]]
    sections: NDArray[Any]


def read_image(file: ImageFile) -> Image:
    """The Image of a PE file: EXE, DLL, SYS; 32 or 64 bits.

    Raises:
        ImageError: it is cut off, or its headers say what cannot be.
    """
    headers = _headers(file)
    strings = _string_table(file, headers)
    rows, names = _section_rows(headers, strings)
    segments = np.array([(0, headers.size, headers.base, headers.size)], SEGMENT)
    exported, export_names = _exports(file, headers)
    own, own_names = _coff_symbols(file, headers, strings)
    own["name"] += len(export_names)
    symbols = _with_ends(np.concatenate((own, exported)), rows, headers)  # of two names for one address, the first
    build_id = _build_id(file, headers)
    complete = len(own) > 0
    ask = None if complete else partial(_ask, file.path, file.identity, rows[_is_code(headers, rows)])
    return Image(segments, rows, names, symbols, export_names + own_names, build_id, readable, complete, ask)


def _ask(path: str, identity: Hashable, code: NDArray[Any], addresses: NDArray[Any]) -> dict[int, tuple[str, int]]:
    """What dbghelp knows of those of the addresses that lie in code."""
    inside = addresses[covering(code, addresses) >= 0]
    return dbghelp.functions(path, identity, inside.tolist())


def _is_code(headers: Headers, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of the SECTION rows that are executable."""
    code: NDArray[np.bool_] = headers.sections["Characteristics"][rows["number"] - 1] & np.uint32(_EXECUTE) != 0
    return code


def _headers(file: ImageFile) -> Headers:
    if file.read(0, 2) != b"MZ":
        raise ImageError(f"{file.path} does not begin with MZ")
    at = struct.unpack("<I", file.read(0x3C, 4))[0]  # e_lfanew
    signature, _, count, stamp, symbols, symbol_count, optional_size, _ = struct.unpack("<4sHHIIIHH", file.read(at, 24))
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
    return Headers(base, size, stamp, symbols, symbol_count, directories, sections)


def _section_rows(headers: Headers, strings: bytes) -> tuple[NDArray[Any], tuple[str, ...]]:
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
    """`.text`; a name longer than 8 bytes stands as `/123` in the table and in full among the symbols' names."""
    if name[:1] == b"/" and name[1:].isdigit():
        at = int(name[1:])
        name = strings[at : at + 256].partition(b"\0")[0] or name
    return name.decode("utf-8", "backslashreplace")


def _mapped(file: ImageFile, headers: Headers, rva: int) -> tuple[int, int]:
    """(place in the file, bytes of the section from there on) of an RVA; ImageError when no section has it."""
    for section in headers.sections:
        start, size = int(section["VirtualAddress"]), int(section["SizeOfRawData"])
        if start <= rva < start + size:
            place = int(section["PointerToRawData"]) + rva - start
            return place, min(size - (rva - start), max(file.size - place, 0))
    raise ImageError(f"{file.path}: RVA {rva:#x} lies in no section")


def _exports(file: ImageFile, headers: Headers) -> tuple[NDArray[Any], bytes]:
    """The exported names, without forwarders; empty when there are none or they cannot be believed."""
    nothing = np.zeros(0, SYMBOL), b""
    if len(headers.directories) <= _EXPORT_DIRECTORY or not headers.directories[_EXPORT_DIRECTORY][0]:
        return nothing
    rva, size = headers.directories[_EXPORT_DIRECTORY]
    try:
        place, _ = _mapped(file, headers, rva)
        functions, count, functions_rva, names_rva, ordinals_rva = struct.unpack("<5I", file.read(place + 20, 20))
        addresses = _array(file, headers, functions_rva, functions, "<u4")
        names = _array(file, headers, names_rva, count, "<u4")
        ordinals = _array(file, headers, ordinals_rva, count, "<u2")
        first = int(names.min()) if count else 0
        text_at, text_size = _mapped(file, headers, first) if count else (0, 0)
        text = file.read(text_at, min(text_size, MAX_NAMES))
    except ImageError:
        return nothing
    keep = (ordinals < functions) & (names - first < len(text))
    target = addresses[ordinals[keep]]
    code = (target != 0) & ((target < rva) | (target >= rva + size))  # inside the directory: a forwarder's name
    rows = np.zeros(int(code.sum()), SYMBOL)
    rows["start"] = target[code].astype("<u8") + np.uint64(headers.base)
    rows["name"] = (names[keep] - np.uint32(first))[code]
    return rows, text + b"\0"


def _array(file: ImageFile, headers: Headers, rva: int, count: int, kind: str) -> NDArray[Any]:
    size = count * np.dtype(kind).itemsize
    if not count:
        return np.zeros(0, kind)
    if count > MAX_EXPORTS:
        raise ImageError(f"{file.path} says that it exports {count} names")
    place, room = _mapped(file, headers, rva)
    if size > room:
        raise ImageError(f"{file.path}: a table of {count} entries at RVA {rva:#x} is cut off")
    return np.frombuffer(file.read(place, size), kind)


def _string_table(file: ImageFile, headers: Headers) -> bytes:
    """The COFF string table, its 4 bytes of size included, so that offsets are as they stand in the file."""
    if not headers.symbols or headers.symbol_count > MAX_COFF_SYMBOLS:
        return b""
    at = headers.symbols + headers.symbol_count * COFF_SYMBOL.itemsize
    try:
        size = struct.unpack("<I", file.read(at, 4))[0]
        return file.read(at, min(size, MAX_NAMES, file.size - at))
    except ImageError:
        return b""


def _coff_symbols(file: ImageFile, headers: Headers, strings: bytes) -> tuple[NDArray[Any], bytes]:
    """The functions of the COFF symbol table, where the linker left one (mingw without -s)."""
    nothing = np.zeros(0, SYMBOL), b""
    if not headers.symbols or not 0 < headers.symbol_count <= MAX_COFF_SYMBOLS:
        return nothing
    try:
        raw = file.read(headers.symbols, headers.symbol_count * COFF_SYMBOL.itemsize)
    except ImageError:
        return nothing
    table = np.frombuffer(raw, COFF_SYMBOL)
    number = table["SectionNumber"]
    keep = (table["Type"] == _FUNCTION) & (number > 0) & (number <= len(headers.sections))
    keep &= np.isin(table["StorageClass"], (_EXTERNAL, _STATIC)) & ~_auxiliary(table)
    chosen = table[keep]
    # a name of up to 8 bytes stands in the record, a longer one in the string table
    short = np.zeros((len(chosen), 9), "u1")
    records = np.frombuffer(raw, "u1").reshape(-1, COFF_SYMBOL.itemsize)
    short[:, :8] = records[keep][:, :8]
    inline = chosen["Zeroes"] != 0
    rows = np.zeros(len(chosen), SYMBOL)
    section = headers.sections["VirtualAddress"][chosen["SectionNumber"] - 1].astype("<u8")
    rows["start"] = section + chosen["Value"].astype("<u8") + np.uint64(headers.base)
    rows["name"] = np.where(inline, np.arange(len(chosen)) * 9 + len(strings), chosen["Offset"])
    known = inline | (chosen["Offset"] < len(strings))
    return rows[known], strings + short.tobytes()


def _auxiliary(table: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of the records that belong to the one before them (they hold sizes, file names ...)."""
    found = np.zeros(len(table), bool)
    for row in np.flatnonzero(table["NumberOfAuxSymbols"]).tolist():
        if not found[row]:
            found[row + 1 : row + 1 + int(table["NumberOfAuxSymbols"][row])] = True
    return found


def _with_ends(symbols: NDArray[Any], rows: NDArray[Any], headers: Headers) -> NDArray[Any]:
    """The functions, sorted, one an address. PE gives no sizes: one ends where the next begins, or its section.

    Exported data is left out: nobody knows where it ends.
    """
    _, first = np.unique(symbols["start"], return_index=True)
    found: NDArray[Any] = symbols[first]
    if not len(found) or not len(rows):
        return found[:0]
    place = np.searchsorted(rows["start"], found["start"], "right") - 1
    inside = (place >= 0) & (found["start"] < rows["end"][place]) & _is_code(headers, rows)[place]
    found, place = found[inside], place[inside]
    following = np.append(found["start"][1:], np.uint64(0xFFFF_FFFF_FFFF_FFFF))
    found["end"] = np.minimum(following, rows["end"][place])
    return found


def _build_id(file: ImageFile, headers: Headers) -> str:
    """What names this very build: the PDB's GUID and age, else time stamp and size of the image; hex."""
    fallback = f"{headers.stamp:08x}{headers.size:x}"
    if len(headers.directories) <= _DEBUG_DIRECTORY:
        return fallback
    rva, size = headers.directories[_DEBUG_DIRECTORY]
    try:
        place, room = _mapped(file, headers, rva) if rva else (0, 0)
        for at in range(place, place + min(size, room, 28 * 64) // 28 * 28, 28):
            kind, length, _, pointer = struct.unpack_from("<4I", file.read(at, 28), 12)
            if kind == _CODEVIEW and length >= 24:
                record = file.read(pointer, 24)
                if record.startswith(b"RSDS"):
                    return record[4:20].hex() + f"{struct.unpack_from('<I', record, 20)[0]:x}"
    except ImageError:
        pass
    return fallback
