"""ELF files as an Image: tables are read into numpy, as one object per symbol costs 50 times as much (README.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.interfaces import Part
from wstrace_plugins.os import elf
from wstrace_plugins.os.elf import Elf
from wstrace_plugins.symbols.image import SECTION, SEGMENT, SYMBOL, Image, ImageError, ImageFile, demangle

STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_GNU_IFUNC = 0, 1, 2, 10
STB_GLOBAL, STB_WEAK = 1, 2


def opened(file: ImageFile) -> Elf:
    """The file's headers. Raises ValueError."""
    return Elf(lambda offset, size: file.read(offset, max(min(size, file.size - offset), 0)))


def read_image(file: ImageFile) -> Image:
    """The Image of an ELF file. Raises ImageError: it is cut off, or its headers contradict themselves."""
    try:
        return image_of(opened(file))
    except (ValueError, OverflowError) as error:
        raise ImageError(f"{file.path}: {error}") from error


def image_of(parsed: Elf) -> Image:
    """The Image of parsed headers. Raises ValueError, OverflowError."""
    sections, names = _sections(parsed)
    complete = any(one.kind == elf.SYMBOLS for one in parsed.sections)
    try:
        symbols, strings, why = *_symbols(parsed, sections, complete), ""
    except elf.TooManySymbolsError as error:  # it keeps its sections
        symbols, strings, why = np.empty(0, SYMBOL), b"", str(error)
    segments = np.array([(one.offset, one.size, one.address, one.memory) for one in parsed.loads], SEGMENT)
    return Image(segments, sections, names, symbols, strings, parsed.build_id, _readable, complete, why=why)


def described_lines(file: ImageFile) -> str:
    """The build-id of an ELF file that has source lines; "" where it has none. Raises ValueError."""
    parsed = opened(file)
    return parsed.build_id if any(parsed.section_name(one).endswith("debug_line") for one in parsed.sections) else ""


def section_parts(file: ImageFile) -> list[Part]:
    """The sections of an ELF file that take bytes of it. Raises ValueError for a file that lies."""
    parsed = opened(file)
    return [
        Part(parsed.section_name(one), one.offset, one.offset + one.size)
        for one in parsed.sections
        if one.size and one.kind not in (elf.NOTHING, elf.NO_BITS)
    ]


def _sections(parsed: Elf) -> tuple[NDArray[Any], tuple[str, ...]]:
    """The sections that are loaded into memory, sorted by address, and their names."""
    found = sorted(
        (one.address, one.address + one.size, number, parsed.section_name(one))
        for number, one in enumerate(parsed.sections)
        # .tbss has an address but occupies no memory: it is the template of each thread's copy
        if one.flags & elf.ALLOCATED and one.size and not (one.flags & elf.PER_THREAD and one.kind == elf.NO_BITS)
    )
    return np.array([row[:3] for row in found], SECTION), tuple(row[3] for row in found)


def _symbols(parsed: Elf, sections: NDArray[Any], complete: bool) -> tuple[NDArray[Any], bytes]:
    """The symbols of .symtab, or of .dynsym in a stripped file, and the string table that names them."""
    raw, strings = parsed.symbols(elf.SYMBOLS if complete else elf.DYNAMIC_SYMBOLS)
    allocated = [n for n, one in enumerate(parsed.sections) if n and one.flags & elf.ALLOCATED]
    executable = [n for n in allocated if parsed.sections[n].flags & elf.CODE]
    raw = raw[np.isin(raw["section"], allocated)]
    return symbol_table(raw, strings, sections, np.isin(raw["section"], executable)), strings


def symbol_table(raw: NDArray[Any], strings: bytes, sections: NDArray[Any], in_code: NDArray[np.bool_]) -> NDArray[Any]:
    """SYMBOL rows of functions and objects, and of labels in code.

    Of several names for one address the best known is kept: function before object before label, global before weak
    before local, without leading underscores before with.
    raw: rows (elf.SYMBOL) of symbols that have a place in memory. strings: the string table. sections: SECTION rows.
    in_code: whether each row lies in a code section, shape (n,).
    """
    text = np.frombuffer(strings or b"\0", "u1")
    kind = raw["info"] & 15
    function, thing = np.isin(kind, (STT_FUNC, STT_GNU_IFUNC)), kind == STT_OBJECT
    first = np.where(raw["name"] < len(text), text[np.minimum(raw["name"], len(text) - 1)], 0)
    # $x, $d: mapping symbols that the arm64 assembler adds
    label = (kind == STT_NOTYPE) & in_code & (first != ord("$"))
    wanted = (function | thing | label) & (first != 0)
    raw, function, thing, first = raw[wanted], function[wanted], thing[wanted], first[wanted]
    binding, underscore = raw["info"] >> 4, first == ord("_")
    rank = np.where(function, np.uint8(0), np.where(thing, np.uint8(16), np.uint8(32)))
    rank += (raw["size"] == 0) * np.uint8(8) + underscore
    rank += np.where(binding == STB_GLOBAL, np.uint8(0), np.where(binding == STB_WEAK, np.uint8(2), np.uint8(4)))
    order = np.lexsort((rank, raw["value"]))
    start = raw["value"][order].astype("<u8")
    kept = order[np.append(True, start[1:] != start[:-1])] if len(order) else order
    rows = np.zeros(len(kept), SYMBOL)
    rows["start"], rows["name"] = raw["value"][kept], raw["name"][kept]
    size = raw["size"][kept].astype("<u8")
    rows["end"] = np.where(size > 0, rows["start"] + size, _unsized_end(rows["start"], sections))
    return rows


def _unsized_end(start: NDArray[Any], sections: NDArray[Any]) -> NDArray[Any]:
    """A symbol without a size (hand-written assembly) ends at the next symbol, at most at its section's end."""
    following = np.append(start[1:], np.uint64(0xFFFF_FFFF_FFFF_FFFF))[: len(start)]
    if not len(sections):
        return start
    inside = np.searchsorted(sections["start"], start, side="right") - 1
    end: NDArray[Any] = np.minimum(following, np.maximum(sections["end"][inside], start))
    return end


def _readable(name: str) -> str:
    """The demangled name without its version: `memcpy` of `memcpy@@GLIBC_2.14`. PE's C++ names are full of `@`."""
    return demangle(name.partition("@")[0])
