"""ELF files as an Image: headers by pyelftools, symbol tables straight into numpy.

Source: elf(5); System V ABI, "Symbol Table". A symbol object each, as pyelftools' and LIEF's own iterators make them,
costs 50 to 80 and 9 to 12 times as much: the figures stand in README.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace_symbols.demangle import demangle
from wstrace_symbols.image import SECTION, SEGMENT, SYMBOL, Image, ImageError, ImageFile

MAX_HEADERS = 4096
MAX_NOTES = 64 << 10

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
SHF_ALLOC, SHF_EXECINSTR, SHF_TLS = 2, 4, 0x400


class Headers(NamedTuple):
    """A file's headers, as pyelftools reads them: Containers with the fields' own names (p_offset, sh_addr)."""

    elf: Any
    programs: list[Any]
    sections: list[Any]


def read_image(file: ImageFile) -> Image:
    """The Image of an ELF file.

    Raises:
        ImageError: it is cut off, or its headers say what cannot be.
    """
    try:
        headers = _headers(file)
        sections, names = _sections(file, headers)
        symbols, strings = _symbols(file, headers, sections)
        complete = any(s["sh_type"] == "SHT_SYMTAB" for s in headers.sections)
        return Image(_segments(headers), sections, names, symbols, strings, _build_id(headers), demangle, complete)
    except ImageError:
        raise
    except Exception as error:  # a parser of others on hostile input: whatever it raises means "not believed"
        raise ImageError(f"{file.path}: {type(error).__name__}: {error}") from error


def _headers(file: ImageFile) -> Headers:
    from elftools.common.utils import struct_parse
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(file.stream)
    programs, sections = elf.num_segments(), elf.num_sections()
    if max(programs, sections) > MAX_HEADERS:
        raise ImageError(f"{file.path}: {programs} program and {sections} section headers are more than {MAX_HEADERS}")
    # the headers alone: ELFFile.iter_segments() reads what they point to, without a bound

    def table(kind: Any, start: int, step: int, count: int) -> list[Any]:
        return [struct_parse(kind, file.stream, stream_pos=start + step * row) for row in range(count)]

    return Headers(
        elf,
        table(elf.structs.Elf_Phdr, elf["e_phoff"], elf["e_phentsize"], programs),
        table(elf.structs.Elf_Shdr, elf["e_shoff"], elf["e_shentsize"], sections),
    )


def _segments(headers: Headers) -> NDArray[Any]:
    loads = [p for p in headers.programs if p["p_type"] == "PT_LOAD"]
    return np.array([(p["p_offset"], p["p_filesz"], p["p_vaddr"], p["p_memsz"]) for p in loads], SEGMENT)


def _sections(file: ImageFile, headers: Headers) -> tuple[NDArray[Any], tuple[str, ...]]:
    """The sections that are in memory, by address, and their names."""
    if not headers.sections:
        return np.empty(0, SECTION), ()
    table = headers.sections[headers.elf.get_shstrndx()]
    names = file.read(table["sh_offset"], table["sh_size"]) if table["sh_type"] == "SHT_STRTAB" else b""
    found = sorted(
        (s["sh_addr"], s["sh_addr"] + s["sh_size"], number, _name(names, s["sh_name"]))
        for number, s in enumerate(headers.sections)
        # .tbss has an address but lies nowhere: it is what each thread's copy begins with
        if s["sh_flags"] & SHF_ALLOC and s["sh_size"] and not (s["sh_flags"] & SHF_TLS and s["sh_type"] == "SHT_NOBITS")
    )
    rows = np.array([row[:3] for row in found], SECTION)
    return rows, tuple(row[3] for row in found)


def _name(names: bytes, start: int) -> str:
    return names[start : start + 256].split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def _symbols(file: ImageFile, headers: Headers, sections: NDArray[Any]) -> tuple[NDArray[Any], bytes]:
    """The symbols of .symtab, or of .dynsym in a stripped file, and the string table that names them."""
    kinds = {s["sh_type"]: s for s in reversed(headers.sections)}
    table = kinds.get("SHT_SYMTAB") or kinds.get("SHT_DYNSYM")
    if table is None or table["sh_link"] >= len(headers.sections):
        return np.empty(0, SYMBOL), b""
    link = headers.sections[table["sh_link"]]
    strings = file.read(link["sh_offset"], link["sh_size"])
    row = SYM64 if headers.elf.elfclass == 64 else SYM32
    data = file.read(table["sh_offset"], table["sh_size"] // row.itemsize * row.itemsize)
    raw = np.frombuffer(data, row if headers.elf.little_endian else row.newbyteorder(">"))
    allocated = [n for n, s in enumerate(headers.sections) if n and s["sh_flags"] & SHF_ALLOC]
    executable = [n for n in allocated if headers.sections[n]["sh_flags"] & SHF_EXECINSTR]
    raw = raw[np.isin(raw["section"], allocated)]
    return symbol_table(raw, strings, sections, np.isin(raw["section"], executable)), strings


def symbol_table(raw: NDArray[Any], strings: bytes, sections: NDArray[Any], in_code: NDArray[np.bool_]) -> NDArray[Any]:
    """SYMBOL rows of functions and objects, and of labels in code.

    Of several names for one address the one is kept that people know: a function before an object before a label,
    global before weak before local, without leading underscores before with.

    Args:
        raw: SYM64 or SYM32 rows, in the file's byte order, of symbols that have a place in memory.
        strings: the string table.
        sections: SECTION rows.
        in_code: whether each row lies in a section of code, shape (n,).
    """
    text = np.frombuffer(strings + b"\0\0", "u1")
    kind = raw["info"] & 15
    function, thing = np.isin(kind, (STT_FUNC, STT_GNU_IFUNC)), kind == STT_OBJECT
    first = text[np.minimum(raw["name"], len(strings))]
    # $x, $d: what arm64's assembler notes for itself
    label = (kind == STT_NOTYPE) & in_code & (first != ord("$"))
    wanted = (function | thing | label) & (first != 0)
    raw, function, thing, first = raw[wanted], function[wanted], thing[wanted], first[wanted]
    binding, underscore = raw["info"] >> 4, first == ord("_")
    rank = np.select([function, thing], [0, 1], 2) * 16
    rank += (raw["size"] == 0) * 8 + np.select([binding == STB_GLOBAL, binding == STB_WEAK], [0, 1], 2) * 2
    rank += underscore
    order = np.lexsort((rank, raw["value"]))
    start = raw["value"][order].astype("<u8")
    kept = order[np.append(True, start[1:] != start[:-1])] if len(order) else order
    rows = np.zeros(len(kept), SYMBOL)
    rows["start"], rows["name"] = raw["value"][kept], raw["name"][kept]
    size = raw["size"][kept].astype("<u8")
    rows["end"] = np.where(size > 0, rows["start"] + size, _unsized_end(rows["start"], sections))
    return rows


def _unsized_end(start: NDArray[Any], sections: NDArray[Any]) -> NDArray[Any]:
    """A symbol without a size (hand-written assembly) reaches to the next one, at most to its section's end."""
    following = np.append(start[1:], np.uint64(0xFFFF_FFFF_FFFF_FFFF))[: len(start)]
    if not len(sections):
        return start
    inside = np.searchsorted(sections["start"], start, side="right") - 1
    end: NDArray[Any] = np.minimum(following, np.maximum(sections["end"][inside], start))
    return end


def _build_id(headers: Headers) -> str:
    from elftools.elf.notes import iter_notes

    for program in headers.programs:
        if program["p_type"] == "PT_NOTE":
            for note in iter_notes(headers.elf, program["p_offset"], min(program["p_filesz"], MAX_NOTES)):
                if note["n_type"] == "NT_GNU_BUILD_ID":
                    return str(note["n_desc"])
    return ""
