"""PE files as an Image: EXE, DLL, SYS; 32 or 64 bits.

A mapping of a PE image counts RVAs as offsets, because Windows maps an image as a whole. Its functions are its exports
and, in code, what dbghelp.dll knows (PDB, DBG, and the COFF symbols that mingw keeps); the function table says where
they end.
Everything in the file is hostile input: each read is bounded and checked, each count is limited before it is used.

Source: Microsoft Learn, "PE Format", "x64 exception handling" (RUNTIME_FUNCTION, UNWIND_INFO); winnt.h:
IMAGE_EXPORT_DIRECTORY.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.os.pe import EXCEPTIONS, EXPORTS, Pe
from wstrace_plugins.symbols import dbghelp
from wstrace_plugins.symbols.image import SECTION, SEGMENT, SYMBOL, Image, ImageError, ImageFile, covering, demangle

MAX_EXPORTS = 1 << 20
MAX_NAMES = 32 << 20  # bytes
MAX_FUNCTIONS = 1 << 20
MAX_UNWIND = 32 << 20  # bytes
_AMD64, _ARM64 = 0x8664, 0xAA64  # IMAGE_FILE_MACHINE_*
_EXECUTE = 0x2000_0000  # IMAGE_SCN_MEM_EXECUTE
_CHAINED = 4 << 3  # UNW_FLAG_CHAININFO, above the three bits of UNWIND_INFO's version
_NOWHERE = 0xFFFF_FFFF_FFFF_FFFF


def read_image(file: ImageFile) -> Image:
    """The Image of a PE file: EXE, DLL, SYS; 32 or 64 bits. Raises ImageError."""
    try:
        pe = Pe(file.read)
        rows, names = _section_rows(pe)
    except ValueError as error:
        raise ImageError(f"{file.path}: {error}") from error
    segments = np.array([(0, pe.size, pe.base, pe.size)], SEGMENT)
    exported, export_names = _exports(pe)
    symbols = _with_ends(exported, rows, pe, _function_table(pe))
    ask = partial(_ask, file.path, file.identity, pe.build_id, rows[_is_code(pe, rows)])
    # dbghelp opens what the linker wrote as the PDB's path, too: a share (also `\??\UNC`) would get our credentials
    elsewhere = pe.pdb.startswith(("\\", "/"))
    return Image(segments, rows, names, symbols, export_names, pe.build_id, readable, complete=False,
                 ask=None if elsewhere else ask)  # fmt: skip


@lru_cache(maxsize=65_536)
def readable(name: str) -> str:
    """The name as its programmer wrote it, Microsoft's C++ by dbghelp.dll; the name itself where nobody here can."""
    if not name.startswith("?") or len(name) > dbghelp.MAX_NAME:
        return demangle(name)
    return dbghelp.undecorated(name) or name


def _ask(
    path: str, identity: Hashable, build_id: str, code: NDArray[Any], addresses: NDArray[Any]
) -> dict[int, tuple[str, int]]:
    """What dbghelp knows about those of the addresses that lie in code. Raises Unavailable once it has crashed."""
    inside = addresses[covering(code, addresses) >= 0]
    return dbghelp.functions(path, identity, build_id, inside.tolist()) if len(inside) else {}


def _section_rows(pe: Pe) -> tuple[NDArray[Any], tuple[str, ...]]:
    """SECTION rows and names. A section ends where its larger size ends, or where the next one begins.

    Pietrek's article of 1996 (docs/compatibility.md) tests `rva <= endRVA`, which gives the byte behind a section to
    it; here the end is exclusive.
    """
    table = pe.sections
    start = table["VirtualAddress"].astype("<u8")
    end = start + np.maximum(table["VirtualSize"], table["SizeOfRawData"]).astype("<u8")
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.minimum(end[order], np.uint64(max(pe.size, 1)))
    end[:-1] = np.minimum(end[:-1], start[1:])
    rows = np.zeros(len(order), SECTION)
    rows["start"], rows["end"] = start + np.uint64(pe.base), np.maximum(end, start) + np.uint64(pe.base)
    rows["number"] = order + 1
    return rows, tuple(name.decode("utf-8", "backslashreplace") for name in table["Name"][order].tolist())


def _is_code(pe: Pe, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of the SECTION rows that are executable."""
    code: NDArray[np.bool_] = pe.sections["Characteristics"][rows["number"] - 1] & np.uint32(_EXECUTE) != 0
    return code


def _exports(pe: Pe) -> tuple[NDArray[Any], bytes]:
    """The exports without forwarders; empty when there are none or the directory cannot be trusted.

    An export without a name is called by its ordinal, `#7`: without it the name before it would cover its addresses.
    """
    nothing = np.zeros(0, SYMBOL), b""
    rva, size = pe.directory(EXPORTS)
    if not rva:
        return nothing
    try:
        place, _ = pe.place(rva)
        base, functions, count, functions_rva, names_rva, ordinals_rva = struct.unpack("<6I", pe.read(place + 16, 24))
        addresses = _array(pe, functions_rva, functions, "<u4")
        names = _array(pe, names_rva, count, "<u4")
        ordinals = _array(pe, ordinals_rva, count, "<u2")
        first = int(names.min()) if count else 0
        text_at, text_size = pe.place(first) if count else (0, 0)
        text = pe.read(text_at, min(text_size, MAX_NAMES)) + b"\0"
    except ValueError:
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
    rows["start"] = target[code].astype("<u8") + np.uint64(pe.base)
    rows["name"] = name[code]
    return rows, text + b"".join(labels)


def _array(pe: Pe, rva: int, count: int, kind: str) -> NDArray[Any]:
    size = count * np.dtype(kind).itemsize
    if not count:
        return np.zeros(0, kind)
    if count > MAX_EXPORTS:
        raise ValueError(f"the file says that it exports {count} names")
    place, room = pe.place(rva)
    if size > room:
        raise ValueError(f"a table of {count} entries at RVA {rva:#x} is cut off")
    return np.frombuffer(pe.read(place, size), kind)


def _function_table(pe: Pe) -> NDArray[Any]:
    """Start and end RVA of each function in the function table, sorted, shape (n, 2); end 0 = unknown.

    A function and its chained parts are one row. A leaf function that moves no stack pointer has no entry.
    """
    nothing = np.zeros((0, 2), "<u4")
    width = {_AMD64: 3, _ARM64: 2}.get(pe.machine)
    rva, size = pe.directory(EXCEPTIONS)
    if width is None or not rva:
        return nothing
    try:
        place, room = pe.place(rva)
        count = min(size, room) // (4 * width)
        if not 0 < count <= MAX_FUNCTIONS:
            return nothing
        table = np.frombuffer(pe.read(place, 4 * width * count), "<u4").reshape(-1, width)
        table = table[np.argsort(table[:, 0], kind="stable")]
        if width == 2:  # its length is stored elsewhere, in three forms: the next entry is used as the end
            return np.stack((table[:, 0], np.zeros(len(table), "<u4")), axis=1)
        return _joined(table[:, :2], _chained(pe, table[:, 2]))
    except ValueError:
        return nothing


def _chained(pe: Pe, unwind: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of the entries that, by their UNWIND_INFO, continue the function before them."""
    first = int(unwind.min())
    place, room = pe.place(first)
    flags = np.frombuffer(pe.read(place, min(int(unwind.max()) - first + 1, room, MAX_UNWIND)), "u1")
    at = (unwind - np.uint32(first)).astype(np.intp)
    known = at < len(flags)
    found: NDArray[np.bool_] = known & (flags[np.where(known, at, 0)] & _CHAINED != 0)
    return found


def _joined(parts: NDArray[Any], chained: NDArray[np.bool_]) -> NDArray[Any]:
    """Joins parts that continue where the part before them ends."""
    goes_on = np.zeros(len(parts), bool)
    goes_on[1:] = chained[1:] & (parts[1:, 0] == parts[:-1, 1])
    heads = np.flatnonzero(~goes_on)
    ends = parts[np.append(heads[1:], len(parts)) - 1, 1]
    return np.stack((parts[heads, 0], ends), axis=1)


def _with_ends(symbols: NDArray[Any], rows: NDArray[Any], pe: Pe, functions: NDArray[Any]) -> NDArray[Any]:
    """The functions, sorted, one per address.

    A symbol has no size. It ends at its end in the function table, at the next symbol or function, or at the end of its
    section, whichever comes first; behind that there is no name. Exported data is left out: its end is not known.
    """
    _, first = np.unique(symbols["start"], return_index=True)
    found: NDArray[Any] = symbols[first]
    if not len(found) or not len(rows):
        return found[:0]
    place = np.searchsorted(rows["start"], found["start"], "right") - 1
    inside = (place >= 0) & (found["start"] < rows["end"][place]) & _is_code(pe, rows)[place]
    found, place = found[inside], place[inside]
    begins, ends = (np.append(column + np.uint64(pe.base), np.uint64(_NOWHERE)) for column in functions.T.astype("<u8"))
    after = np.searchsorted(begins, found["start"], "right")
    border = np.minimum(np.append(found["start"], np.uint64(_NOWHERE))[1:], rows["end"][place])
    border = np.minimum(border, begins[after])
    own = ends[after - 1]
    found["end"] = np.where(found["start"] < own, np.minimum(own, border), border)
    return found
