"""The functions of a PE file: exports, COFF symbols (which mingw keeps), and function ends from the function table.

Source: Microsoft Learn, "PE Format", "x64 exception handling" (RUNTIME_FUNCTION, UNWIND_INFO); winnt.h:
IMAGE_EXPORT_DIRECTORY, IMAGE_SYMBOL.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.symbols.image import SYMBOL, ImageError, Readable
from wstrace_plugins.symbols.pe_headers import (
    AMD64,
    ARM64,
    EXCEPTION_DIRECTORY,
    EXPORT_DIRECTORY,
    PeHeaders,
    is_code,
    mapped,
)

MAX_EXPORTS = 1 << 20
MAX_COFF_SYMBOLS = 1 << 20
MAX_NAMES = 32 << 20  # bytes
MAX_FUNCTIONS = 1 << 20
MAX_UNWIND = 32 << 20  # bytes
_CHAINED = 4 << 3  # UNW_FLAG_CHAININFO, above the three bits of UNWIND_INFO's version
_NOWHERE = 0xFFFF_FFFF_FFFF_FFFF

COFF_SYMBOL = np.dtype([
    ("Zeroes", "<u4"), ("Offset", "<u4"), ("Value", "<u4"), ("SectionNumber", "<i2"), ("Type", "<u2"),
    ("StorageClass", "u1"), ("NumberOfAuxSymbols", "u1"),
])  # fmt: skip
assert COFF_SYMBOL.itemsize == 18  # IMAGE_SYMBOL
_FUNCTION, _EXTERNAL, _STATIC = 0x20, 2, 3


def exports(file: Readable, headers: PeHeaders) -> tuple[NDArray[Any], bytes]:
    """The exports without forwarders; empty when there are none or the directory cannot be trusted.

    An export without a name is called by its ordinal, `#7`: without it the name before it would cover its addresses.
    """
    nothing = np.zeros(0, SYMBOL), b""
    if len(headers.directories) <= EXPORT_DIRECTORY or not headers.directories[EXPORT_DIRECTORY][0]:
        return nothing
    rva, size = headers.directories[EXPORT_DIRECTORY]
    try:
        place, _ = mapped(file, headers, rva)
        base, functions, count, functions_rva, names_rva, ordinals_rva = struct.unpack("<6I", file.read(place + 16, 24))
        addresses = _array(file, headers, functions_rva, functions, "<u4")
        names = _array(file, headers, names_rva, count, "<u4")
        ordinals = _array(file, headers, ordinals_rva, count, "<u2")
        first = int(names.min()) if count else 0
        text_at, text_size = mapped(file, headers, first) if count else (0, 0)
        text = file.read(text_at, min(text_size, MAX_NAMES)) + b"\0"
    except ImageError:
        return nothing
    keep = (ordinals < functions) & (names - first < len(text) - 1)
    nameless = np.setdiff1d(np.flatnonzero(addresses), ordinals[keep])
    labels = [b"#%d\0" % (base + ordinal) for ordinal in nameless.tolist()]
    starts = np.cumsum([len(text), *map(len, labels)])[:-1]
    target = np.concatenate((addresses[ordinals[keep]], addresses[nameless]))
    name = np.concatenate(((names[keep] - np.uint32(first)).astype("<u4"), starts.astype("<u4")))
    # a target inside the directory is a forwarder's name
    code = (target != 0) & ((target < rva) | (target >= rva + size))
    rows = np.zeros(int(code.sum()), SYMBOL)
    rows["start"] = target[code].astype("<u8") + np.uint64(headers.base)
    rows["name"] = name[code]
    return rows, text + b"".join(labels)


def _array(file: Readable, headers: PeHeaders, rva: int, count: int, kind: str) -> NDArray[Any]:
    size = count * np.dtype(kind).itemsize
    if not count:
        return np.zeros(0, kind)
    if count > MAX_EXPORTS:
        raise ImageError(f"{file.path} says that it exports {count} names")
    place, room = mapped(file, headers, rva)
    if size > room:
        raise ImageError(f"{file.path}: a table of {count} entries at RVA {rva:#x} is cut off")
    return np.frombuffer(file.read(place, size), kind)


def function_table(file: Readable, headers: PeHeaders) -> NDArray[Any]:
    """Start and end RVA of each function in the function table, sorted, shape (n, 2); end 0 = unknown.

    A function and its chained parts are one row. A leaf function that moves no stack pointer has no entry.
    """
    nothing = np.zeros((0, 2), "<u4")
    width = {AMD64: 3, ARM64: 2}.get(headers.machine)
    if width is None or len(headers.directories) <= EXCEPTION_DIRECTORY:
        return nothing
    rva, size = headers.directories[EXCEPTION_DIRECTORY]
    try:
        place, room = mapped(file, headers, rva) if rva else (0, 0)
        count = min(size, room) // (4 * width)
        if count > MAX_FUNCTIONS:
            return nothing
        table = np.frombuffer(file.read(place, 4 * width * count), "<u4").reshape(-1, width)
        table = table[np.argsort(table[:, 0], kind="stable")]
        if width == 2:  # its length is stored elsewhere, in three forms: the next entry is used as the end
            return np.stack((table[:, 0], np.zeros(len(table), "<u4")), axis=1)
        return _joined(table[:, :2], _chained(file, headers, table[:, 2]))
    except ImageError:
        return nothing


def _chained(file: Readable, headers: PeHeaders, unwind: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of the entries whose UNWIND_INFO says that they continue the function before them."""
    if not len(unwind):
        return np.zeros(0, bool)
    first = int(unwind.min())
    place, room = mapped(file, headers, first)
    flags = np.frombuffer(file.read(place, min(int(unwind.max()) - first + 1, room, MAX_UNWIND)), "u1")
    at = (unwind - np.uint32(first)).astype(np.intp)
    known = at < len(flags)
    found: NDArray[np.bool_] = known & (flags[np.where(known, at, 0)] & _CHAINED != 0)
    return found


def _joined(parts: NDArray[Any], chained: NDArray[np.bool_]) -> NDArray[Any]:
    """Joins parts that continue where the part before them ends."""
    if not len(parts):
        return parts
    goes_on = np.zeros(len(parts), bool)
    goes_on[1:] = chained[1:] & (parts[1:, 0] == parts[:-1, 1])
    heads = np.flatnonzero(~goes_on)
    ends = parts[np.append(heads[1:], len(parts)) - 1, 1]
    return np.stack((parts[heads, 0], ends), axis=1)


def string_table(file: Readable, headers: PeHeaders) -> bytes:
    """The COFF string table with its 4-byte size, so that offsets are those in the file."""
    if not headers.symbols or headers.symbol_count > MAX_COFF_SYMBOLS:
        return b""
    at = headers.symbols + headers.symbol_count * COFF_SYMBOL.itemsize
    try:
        size = struct.unpack("<I", file.read(at, 4))[0]
        return file.read(at, min(size, MAX_NAMES, file.size - at))
    except ImageError:
        return b""


def coff_symbols(file: Readable, headers: PeHeaders, strings: bytes) -> tuple[NDArray[Any], bytes]:
    """The functions of the COFF symbol table, if the linker kept one (mingw without -s)."""
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
    # a name of up to 8 bytes is in the record, a longer one in the string table
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
    """Mask of the auxiliary records, which belong to the record before them (sizes, file names ...)."""
    found = np.zeros(len(table), bool)
    for row in np.flatnonzero(table["NumberOfAuxSymbols"]).tolist():
        if not found[row]:
            found[row + 1 : row + 1 + int(table["NumberOfAuxSymbols"][row])] = True
    return found


def with_ends(symbols: NDArray[Any], rows: NDArray[Any], headers: PeHeaders, functions: NDArray[Any]) -> NDArray[Any]:
    """The functions, sorted, one per address.

    A symbol has no size. It ends at its end in the function table, at the next symbol or function, or at the end of its
    section, whichever comes first; behind that there is no name. Exported data is left out: its end is not known.
    """
    _, first = np.unique(symbols["start"], return_index=True)
    found: NDArray[Any] = symbols[first]
    if not len(found) or not len(rows):
        return found[:0]
    place = np.searchsorted(rows["start"], found["start"], "right") - 1
    inside = (place >= 0) & (found["start"] < rows["end"][place]) & is_code(headers, rows)[place]
    found, place = found[inside], place[inside]
    following = np.append(found["start"][1:], np.uint64(_NOWHERE))
    found["end"] = np.minimum(
        np.minimum(following, rows["end"][place]), _function_ends(found["start"], headers, functions)
    )
    return found


def _function_ends(starts: NDArray[Any], headers: PeHeaders, functions: NDArray[Any]) -> NDArray[Any]:
    """The end of the function at each address from the function table, or the start of the next one there."""
    if not len(functions):
        return np.full(len(starts), _NOWHERE, "<u8")
    begin = functions[:, 0].astype("<u8") + np.uint64(headers.base)
    end = functions[:, 1].astype("<u8") + np.uint64(headers.base)
    after = np.searchsorted(begin, starts, "right")
    following = np.append(begin, np.uint64(_NOWHERE))[after]
    own = end[np.maximum(after - 1, 0)]
    covered = (after > 0) & (starts < own)
    ends: NDArray[Any] = np.where(covered, np.minimum(own, following), following)
    return ends
