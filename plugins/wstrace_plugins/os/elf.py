"""ELF files: their headers, sections, symbols, notes and libraries. All that reads ELF reads it here.

The file is anyone's, may lie, and may change: it is read in bounded pieces, never mapped, as a file that shrinks would
end us by SIGBUS, and every count is checked before it is used.
Source: elf(5); System V ABI, "Symbol Table"; NT_GNU_BUILD_ID in glibc's elf.h.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: read(offset, size): that many bytes of the file, fewer at its end
Read = Callable[[int, int], bytes]

MAGIC = b"\x7fELF"
MAX_HEADERS = 4096
MAX_SEGMENTS = 64  # loaded or with notes: linkers make four to ten of them
MAX_NOTES = 64  # read at most, in all segments
MAX_NOTE_BYTES = 16 << 10  # read of one segment
MAX_SECTION_NAMES = 1 << 20  # bytes
MAX_SYMBOLS = 1 << 20  # node has 0.3 million
MAX_STRINGS = 40 << 20  # bytes
MAX_NAME = 4096  # bytes of a name
MAX_IMPORTS, MAX_LIBRARIES = 1 << 15, 1024  # of one program, with the folders of its libraries
_MAX_READ = 64 << 20

X86_64 = 62  # e_machine
MOVABLE = 3  # e_type: it is mapped at any address
LOAD, NOTE, EH_FRAME = 1, 4, 0x6474E550  # p_type
EXECUTABLE = 1  # p_flags
SYMBOLS, STRINGS, NOTHING, DYNAMIC, NO_BITS, DYNAMIC_SYMBOLS = 2, 3, 0, 6, 8, 11  # sh_type
ALLOCATED, CODE, PER_THREAD = 2, 4, 0x400  # sh_flags
#: type and name of notes: Go's linker puts its own alone into a segment
_BUILD_IDS = ((3, b"GNU\0"), (4, b"Go\0\0"))
_NEEDED, _RPATH, _RUNPATH = 1, 15, 29  # d_tag

_os: Any = os  # When mypy checks for Windows, the POSIX half has no types.


class Program(NamedTuple):
    """A program header: a segment of the file and its place in memory."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    size: int
    memory: int
    alignment: int


class Section(NamedTuple):
    """A section header; name is an index into the names."""

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


def _form(names: Sequence[str], kinds: str) -> np.dtype[Any]:
    return np.dtype([(name, f"<{kind}") for name, kind in zip(names, kinds.split(), strict=True)])


_PROGRAMS = _form(Program._fields, "u4 u4 u8 u8 u8 u8 u8 u8")
_SECTIONS = _form(Section._fields, "u4 u4 u8 u8 u8 u8 u4 u4 u8 u8")
#: Elf64_Sym
SYMBOL = _form(("name", "info", "other", "section", "value", "size"), "u4 u1 u1 u2 u8 u8")
_TAGS = _form(("tag", "value"), "u8 u8")
_HEADER = struct.Struct("<HHIQQQIHHHHHH")


class TooManySymbolsError(ValueError):
    """A table is larger than what is read: in a part of one, symbols without a size would reach to a wrong next one."""


def _string(strings: bytes, at: int) -> bytes:
    """A name in a table of strings, cut at MAX_NAME: one without an end would be all that is left of the table."""
    return strings[at : at + MAX_NAME].partition(b"\0")[0]


def read_of(fd: int) -> Read:
    """What reads an open file: b"" where that fails."""

    def read(offset: int, size: int) -> bytes:
        try:
            content: bytes = _os.pread(fd, min(size, _MAX_READ), offset)
        except (OSError, OverflowError):
            return b""
        return content

    return read


class Elf:
    """A little-endian ELF file of 64 bits, of any machine. Addresses are the file's own (p_vaddr).

    read: gives bytes of the file; it must stay readable. Raises ValueError: it is none, is cut off, or contradicts
    itself. All methods may raise it.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        head = read(0, 64)
        if len(head) < 64 or not head.startswith(MAGIC) or head[4:6] != b"\2\1":
            raise ValueError("no little-endian ELF file of 64 bits")
        self.kind, self.machine, _, self.entry, programs, self._sections_at, _, _, *counts = _HEADER.unpack_from(
            head, 16
        )
        self._program_size, n_programs, self._section_size, self._n_sections, self._names_in = counts
        rows = self._headers(_PROGRAMS, programs, n_programs, self._program_size)
        self.programs = [Program(*row) for row in rows]
        self.loads = [one for one in self.programs if one.kind == LOAD]
        if len(self.loads) > MAX_SEGMENTS:
            raise ValueError(f"{len(self.loads)} segments in memory are more than {MAX_SEGMENTS}")

    @functools.cached_property
    def sections(self) -> list[Section]:
        """The section headers, numbered as readelf does."""
        rows = self._headers(_SECTIONS, self._sections_at, self._n_sections, self._section_size)
        return [Section(*row) for row in rows]

    @functools.cached_property
    def _names(self) -> bytes:
        if self._names_in >= len(self.sections) or self.sections[self._names_in].kind != STRINGS:
            return b""
        table = self.sections[self._names_in]
        return self.content(table.offset, min(table.size, MAX_SECTION_NAMES))

    def section_name(self, section: Section) -> str:
        """The name of a section."""
        name = self._names[section.name : section.name + 256]
        return name.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")

    def symbols(self, kind: int) -> tuple[NDArray[Any], bytes]:
        """The rows (SYMBOL) of the table `SYMBOLS` or `DYNAMIC_SYMBOLS`, none where it is not there; their strings."""
        return self._linked(kind, SYMBOL)

    def symbol(self, name: bytes, kinds: Sequence[int] = (DYNAMIC_SYMBOLS, SYMBOLS)) -> tuple[int, int] | None:
        """The address and size of a symbol that the file defines; None where it has none of that name."""
        for kind in kinds:
            rows, strings = self.symbols(kind)
            at = strings.find(b"\0" + name + b"\0") + 1
            hit = rows[(rows["name"] == at) & (rows["section"] != 0)] if at else rows[:0]
            if len(hit):
                return int(hit["value"][0]), int(hit["size"][0])
        return None

    def imports(self) -> set[bytes]:
        """The names of the symbols that it expects of its libraries."""
        rows, strings = self.symbols(DYNAMIC_SYMBOLS)
        names = rows["name"][rows["section"] == 0].tolist()
        if len(names) > MAX_IMPORTS:
            raise TooManySymbolsError(f"expects {len(names)} symbols of its libraries")
        return {_string(strings, at) for at in names} - {b""}

    def libraries(self) -> tuple[list[str], list[str]]:
        """The names of the libraries that it needs, and the folders that it wants them to be searched in."""
        needed: list[str] = []
        folders: list[str] = []
        rows, strings = self._linked(DYNAMIC, _TAGS)
        for tag, value in rows.tolist():
            if tag in (_NEEDED, _RPATH, _RUNPATH):
                text = os.fsdecode(_string(strings, value))
                (needed if tag == _NEEDED else folders).append(text)
                if len(needed) + len(folders) > MAX_LIBRARIES:
                    raise ValueError(f"needs more than {MAX_LIBRARIES} libraries")
        return needed, [folder for text in folders for folder in text.split(":")]

    @functools.cached_property
    def build_id(self) -> str:
        """The hash of its content that its linker left in a note, hex; "" = there is none within the bounds.

        A note: name size, descriptor size and type of 4 bytes each, then name and descriptor, padded to 4 bytes.
        """
        words, left = struct.Struct("<3I"), MAX_NOTES
        for program in [one for one in self.programs if one.kind == NOTE][:MAX_SEGMENTS]:
            notes, at = self._read(program.offset, min(program.size, MAX_NOTE_BYTES)), 0
            while at + words.size <= len(notes) and left:
                name_size, size, kind = words.unpack_from(notes, at)
                name_at = at + words.size
                start = name_at + (name_size + 3) // 4 * 4
                if (kind, notes[name_at:start]) in _BUILD_IDS and start + size <= len(notes):
                    return notes[start : start + size].hex()
                at, left = start + (size + 3) // 4 * 4, left - 1
        return ""

    def address_of(self, offset: int) -> int | None:
        """The address at which the byte at that offset of the file is loaded; None where it is not."""
        for one in self.loads:
            if one.offset <= offset < one.offset + one.size:
                return offset - one.offset + one.address
        return None

    def offset_of(self, address: int) -> int:
        """Where in the file stands what is loaded at an address."""
        for one in self.loads:
            if one.address <= address < one.address + one.size:
                return address - one.address + one.offset
        raise ValueError(f"{address:#x} is in no segment")

    def content(self, offset: int, size: int) -> bytes:
        """Exactly that many bytes of the file."""
        content = self._read(offset, size) if size <= _MAX_READ else b""
        if len(content) != size:
            raise ValueError("the ELF file is cut off, or its headers contradict themselves")
        return content

    def _headers(self, form: np.dtype[Any], offset: int, count: int, step: int) -> list[tuple[int, ...]]:
        """The rows of a table of headers. Raises ValueError."""
        if not count:
            return []
        if count > MAX_HEADERS or step != form.itemsize:
            raise ValueError(f"{count} headers of {step} bytes in an ELF file")
        rows: list[tuple[int, ...]] = self._rows(form, offset, count).tolist()
        return rows

    def _rows(self, form: np.dtype[Any], offset: int, count: int) -> NDArray[Any]:
        """The rows of a table."""
        return np.frombuffer(self.content(offset, count * form.itemsize), form)

    def _linked(self, kind: int, form: np.dtype[Any]) -> tuple[NDArray[Any], bytes]:
        """The rows of the first section of a kind, and the strings that it refers to."""
        table = next((one for one in self.sections if one.kind == kind), None)
        if table is None or table.link >= len(self.sections):
            return np.empty(0, form), b""
        strings, count = self.sections[table.link], table.size // form.itemsize
        if count > MAX_SYMBOLS or strings.size > MAX_STRINGS:
            raise TooManySymbolsError("has more symbols than are read")
        return self._rows(form, table.offset, count), self.content(strings.offset, strings.size)
