"""ELF files as an Image: headers by pyelftools, symbol tables read directly into numpy, notes by hand within bounds.

Source: elf(5); System V ABI, "Symbol Table". One object per symbol, as the iterators of pyelftools and LIEF make,
costs 50 to 80 and 9 to 12 times as much: the figures are in README.md.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.places import Part
from wstrace_plugins.symbols.demangle import demangle
from wstrace_plugins.symbols.image import SECTION, SEGMENT, SYMBOL, Image, ImageBytes, ImageError, ImageFile

MAX_HEADERS = 4096
MAX_SEGMENTS = 64  # loaded or with notes: linkers make four to ten of them
MAX_NOTES = 64  # read at most, in all segments
MAX_NOTE_BYTES = 16 << 10  # read of one segment
MAX_SECTION_NAMES = 1 << 20  # bytes
MAX_SYMBOLS = 1 << 20  # node has 0.3 million; a file with more keeps its sections
MAX_STRINGS = 40 << 20  # bytes
MAX_DEBUG_BYTES = 512 << 20  # unpacked

SYM64 = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
SYM32 = np.dtype(
    [("name", "<u4"), ("value", "<u4"), ("size", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2")]
)
assert SYM64.itemsize == 24  # Elf64_Sym
assert SYM32.itemsize == 16  # Elf32_Sym

STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_GNU_IFUNC = 0, 1, 2, 10
STB_GLOBAL, STB_WEAK = 1, 2
_NT_GNU_BUILD_ID = 3
SHF_ALLOC, SHF_EXECINSTR, SHF_TLS, SHF_COMPRESSED = 2, 4, 0x400, 0x800


#: what an image is read from
Content = ImageFile | ImageBytes


class ElfHeaders(NamedTuple):
    """A file's headers, as pyelftools reads them: Containers with the fields' own names (p_offset, sh_addr)."""

    elf: Any
    programs: list[Any]
    sections: list[Any]


def read_image(file: Content) -> Image:
    """The Image of an ELF file.

    Raises:
        ImageError: it is cut off, or its headers contradict themselves.
    """
    try:
        headers = _headers(file)
        sections, names = _sections(file, headers)
        symbols, strings, why = _symbols(file, headers, sections)
        complete = any(s["sh_type"] == "SHT_SYMTAB" for s in headers.sections)
        segments, build_id = _segments(file, headers), _build_id(file, headers)
        return Image(segments, sections, names, symbols, strings, build_id, _readable, complete, why=why)
    except ImageError:
        raise
    except Exception as error:  # the parser was not written for hostile input: whatever it raises means "not trusted"
        raise ImageError(f"{file.path}: {type(error).__name__}: {error}") from error


def described_lines(file: ImageFile) -> str:
    """The build-id of an ELF file that has source lines; "" where it has none, too many, or cannot be trusted."""
    try:
        headers = _headers(file)
        table = headers.sections[headers.elf.get_shstrndx()]
        names = file.read(table["sh_offset"], min(table["sh_size"], MAX_SECTION_NAMES))
        named = [(_name(names, section["sh_name"]), section) for section in headers.sections]
        debug = [(name, section) for name, section in named if name.startswith((".debug_", ".zdebug_"))]
        size = sum(_uncompressed(file, headers.elf, name, section) for name, section in debug)
        if any(name.endswith("debug_line") for name, _ in debug) and size <= MAX_DEBUG_BYTES:
            return _build_id(file, headers)
    except Exception:  # as in read_image()
        return ""
    return ""


def _uncompressed(file: ImageFile, elf: Any, name: str, section: Any) -> int:
    """The bytes of a section when it is unpacked, as it tells at its begin: `ZLIB`, or Elf64_Chdr or Elf32_Chdr."""
    if name.startswith(".z"):
        return int.from_bytes(file.read(section["sh_offset"] + 4, 8), "big")
    if not section["sh_flags"] & SHF_COMPRESSED:
        return int(section["sh_size"])
    at, size = (8, 8) if elf.elfclass == 64 else (4, 4)
    return int.from_bytes(file.read(section["sh_offset"] + at, size), "little" if elf.little_endian else "big")


def section_parts(file: ImageFile) -> list[Part]:
    """The sections of an ELF file that take bytes of it. Raises what the parser raises on a file that lies."""
    headers = _headers(file)
    sections = headers.sections
    table = sections[headers.elf.get_shstrndx()]
    names = file.read(table["sh_offset"], min(table["sh_size"], MAX_SECTION_NAMES))
    return [
        Part(_name(names, s["sh_name"]), s["sh_offset"], s["sh_offset"] + s["sh_size"])
        for s in sections
        if s["sh_size"] and s["sh_type"] not in ("SHT_NULL", "SHT_NOBITS")
    ]


def _headers(file: Content) -> ElfHeaders:
    from elftools.common.utils import struct_parse
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(file.stream)
    programs, sections = elf.num_segments(), elf.num_sections()
    if max(programs, sections) > MAX_HEADERS:
        raise ImageError(f"{file.path}: {programs} program and {sections} section headers are more than {MAX_HEADERS}")
    # only the headers: ELFFile.iter_segments() reads what they point to, without a bound

    def table(kind: Any, start: int, step: int, count: int) -> list[Any]:
        return [struct_parse(kind, file.stream, stream_pos=start + step * row) for row in range(count)]

    return ElfHeaders(
        elf,
        table(elf.structs.Elf_Phdr, elf["e_phoff"], elf["e_phentsize"], programs),
        table(elf.structs.Elf_Shdr, elf["e_shoff"], elf["e_shentsize"], sections),
    )


def _segments(file: Content, headers: ElfHeaders) -> NDArray[Any]:
    loads = [p for p in headers.programs if p["p_type"] == "PT_LOAD"]
    if len(loads) > MAX_SEGMENTS:
        raise ImageError(f"{file.path}: {len(loads)} segments in memory are more than {MAX_SEGMENTS}")
    return np.array([(p["p_offset"], p["p_filesz"], p["p_vaddr"], p["p_memsz"]) for p in loads], SEGMENT)


def _sections(file: Content, headers: ElfHeaders) -> tuple[NDArray[Any], tuple[str, ...]]:
    """The sections that are loaded into memory, sorted by address, and their names."""
    if not headers.sections:
        return np.empty(0, SECTION), ()
    table = headers.sections[headers.elf.get_shstrndx()]
    size = min(table["sh_size"], MAX_SECTION_NAMES)
    names = file.read(table["sh_offset"], size) if table["sh_type"] == "SHT_STRTAB" else b""
    found = sorted(
        (s["sh_addr"], s["sh_addr"] + s["sh_size"], number, _name(names, s["sh_name"]))
        for number, s in enumerate(headers.sections)
        # .tbss has an address but occupies no memory: it is the template of each thread's copy
        if s["sh_flags"] & SHF_ALLOC and s["sh_size"] and not (s["sh_flags"] & SHF_TLS and s["sh_type"] == "SHT_NOBITS")
    )
    rows = np.array([row[:3] for row in found], SECTION)
    return rows, tuple(row[3] for row in found)


def _name(names: bytes, start: int) -> str:
    return names[start : start + 256].split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def _symbols(file: Content, headers: ElfHeaders, sections: NDArray[Any]) -> tuple[NDArray[Any], bytes, str]:
    """The symbols of .symtab, or of .dynsym in a stripped file, the string table that names them; why there are none.

    A table over the bounds gives none: in a part of a table, symbols without a size would reach to a wrong next symbol.
    """
    kinds = {s["sh_type"]: s for s in reversed(headers.sections)}
    table = kinds.get("SHT_SYMTAB") or kinds.get("SHT_DYNSYM")
    if table is None or table["sh_link"] >= len(headers.sections):
        return np.empty(0, SYMBOL), b"", ""
    link = headers.sections[table["sh_link"]]
    row = SYM64 if headers.elf.elfclass == 64 else SYM32
    count = table["sh_size"] // row.itemsize
    if count > MAX_SYMBOLS or link["sh_size"] > MAX_STRINGS:
        return np.empty(0, SYMBOL), b"", "has more symbols than are read"
    strings = file.read(link["sh_offset"], link["sh_size"])
    order = row if headers.elf.little_endian else row.newbyteorder(">")
    raw = np.frombuffer(file.read(table["sh_offset"], count * row.itemsize), order)
    allocated = [n for n, s in enumerate(headers.sections) if n and s["sh_flags"] & SHF_ALLOC]
    executable = [n for n in allocated if headers.sections[n]["sh_flags"] & SHF_EXECINSTR]
    raw = raw[np.isin(raw["section"], allocated)]
    return symbol_table(raw, strings, sections, np.isin(raw["section"], executable)), strings, ""


def symbol_table(raw: NDArray[Any], strings: bytes, sections: NDArray[Any], in_code: NDArray[np.bool_]) -> NDArray[Any]:
    """SYMBOL rows of functions and objects, and of labels in code.

    Of several names for one address the best known is kept: function before object before label, global before weak
    before local, without leading underscores before with.

    Args:
        raw: SYM64 or SYM32 rows, in the file's byte order, of symbols that have a place in memory.
        strings: the string table.
        sections: SECTION rows.
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


def _build_id(file: Content, headers: ElfHeaders) -> str:
    """The descriptor of the first NT_GNU_BUILD_ID note, hex; "" when there is none within the bounds.

    Source: elf(5), "Notes (Nhdr)": name size, descriptor size and type of 4 bytes each, then both, padded to 4 bytes.
    """
    words = struct.Struct("<3I" if headers.elf.little_endian else ">3I")
    left = MAX_NOTES
    for program in [p for p in headers.programs if p["p_type"] == "PT_NOTE"][:MAX_SEGMENTS]:
        size = max(min(program["p_filesz"], MAX_NOTE_BYTES, file.size - program["p_offset"]), 0)
        notes, at = file.read(program["p_offset"], size), 0
        while at + words.size <= size and left:
            name_size, length, kind = words.unpack_from(notes, at)
            name_at = at + words.size
            start = name_at + (name_size + 3) // 4 * 4
            if kind == _NT_GNU_BUILD_ID and notes[name_at : name_at + 4] == b"GNU\0" and start + length <= size:
                return notes[start : start + length].hex()
            at, left = start + (length + 3) // 4 * 4, left - 1
    return ""


def _readable(name: str) -> str:
    """The demangled name without its version: `memcpy` of `memcpy@@GLIBC_2.14`. PE's C++ names are full of `@`."""
    return demangle(name.partition("@")[0])
