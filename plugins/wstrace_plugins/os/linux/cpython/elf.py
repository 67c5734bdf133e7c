"""Whether an ELF file has a CPython in it: the symbols _PyRuntime and Py_Version, which stripped files keep.

The file is anyone's: it is read in bounded pieces, never mapped, as a file that shrinks would end us by SIGBUS.
Source: elf(5); Include/patchlevel.h (PY_VERSION_HEX).
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace_plugins.os.linux.cpython.layouts import Layout

_os: Any = os  # When mypy checks for Windows, the POSIX half has no types.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = np.dtype([
    ("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8"),
])  # fmt: skip
_DYNAMIC_TAG = np.dtype([("tag", "<u8"), ("value", "<u8")])
_IDENTITY = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_LOAD, _SYMBOLS, _DYNAMIC_SYMBOLS, _DYNAMIC_SECTION = 1, 2, 11, 6
_EXECUTABLE = 1  # p_flags
_NEEDED, _RPATH, _RUNPATH = 1, 15, 29
_FIXED, _MOVABLE = 2, 3  # e_type
_MOST_BYTES, _MOST_HEADERS = 32 << 20, 4096


class Python(NamedTuple):
    """A CPython in a file: its layout, or why it cannot be read (`refused`); the link-time address of _PyRuntime.

    movable: the address is relative to where the file's first segment (`first`, its link-time address) is mapped.
    code: the link-time address where its code begins, mm_struct.start_code of a process whose program it is.
    code_offset: where that stands in the file.
    """

    layout: Layout | None
    refused: str
    runtime: int
    movable: bool
    first: int
    code: int
    code_offset: int


class ElfFile:
    """An ELF file of this machine's kind.

    Raises:
        ValueError: it is none, or damaged.
        OSError: it cannot be read.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        raw = self._read(0, _HEADER.size)
        identity, self.kind, _, _, _, segments, sections, _, _, _, n_segments, _, n_sections, _ = _HEADER.unpack(raw)
        if not identity.startswith(_IDENTITY) or self.kind not in (_FIXED, _MOVABLE):
            raise ValueError("not an ELF file of 64 bits")
        self._segments = self._table(_SEGMENT, segments, n_segments)
        self._sections = self._table(_SECTION, sections, n_sections)

    def _read(self, offset: int, size: int) -> bytes:
        if not 0 <= size <= _MOST_BYTES or not 0 <= offset < 1 << 62:
            raise ValueError("an ELF file with absurd sizes")
        raw: bytes = _os.pread(self._fd, size, offset)
        if len(raw) != size:
            raise ValueError("an ELF file that was cut")
        return raw

    def _table(self, kind: struct.Struct, offset: int, n: int) -> list[tuple[int, ...]]:
        return list(kind.iter_unpack(self._read(offset, kind.size * min(n, _MOST_HEADERS))))

    def _named(self, kind: int, dtype: np.dtype[Any]) -> list[tuple[NDArray[Any], bytes]]:
        """(entries, their strings) of the sections of a kind."""
        found = []
        for section in self._sections:
            if section[1] == kind and section[6] < len(self._sections):
                strings = self._sections[section[6]]
                raw = self._read(section[4], section[5] // dtype.itemsize * dtype.itemsize)
                found.append((np.frombuffer(raw, dtype), self._read(strings[4], strings[5])))
        return found

    def symbol(self, name: bytes) -> int | None:
        """The address of a symbol that the file defines."""
        for kind in (_DYNAMIC_SYMBOLS, _SYMBOLS):
            for symbols, strings in self._named(kind, _SYMBOL):
                at = strings.find(b"\0" + name + b"\0") + 1
                hit = symbols[(symbols["name"] == at) & (symbols["section"] != 0)] if at else symbols[:0]
                if len(hit):
                    return int(hit["value"][0])
        return None

    def imports(self) -> set[bytes]:
        """The names of the symbols that it expects of its libraries."""
        found: set[bytes] = set()
        for symbols, strings in self._named(_DYNAMIC_SYMBOLS, _SYMBOL):
            for at in symbols["name"][symbols["section"] == 0].tolist():
                found.add(strings[at : strings.find(b"\0", at)])
        return found - {b""}

    def data(self, address: int, size: int) -> bytes:
        """What stands at a link-time address before the file is run: at most size bytes."""
        for kind, _, offset, begin, _, in_file, _, _ in self._segments:
            if kind == _LOAD and begin <= address < begin + in_file:
                return self._read(offset + address - begin, min(size, begin + in_file - address))
        return b""

    def libraries(self) -> tuple[list[str], list[str]]:
        """The names of the libraries that it needs, and the folders that it wants them to be searched in."""
        needed: list[str] = []
        folders: list[str] = []
        for tags, strings in self._named(_DYNAMIC_SECTION, _DYNAMIC_TAG):
            for tag, value in tags.tolist():
                if tag in (_NEEDED, _RPATH, _RUNPATH):
                    text = os.fsdecode(strings[value : strings.find(b"\0", value)])
                    (needed if tag == _NEEDED else folders).append(text)
        return needed, [folder for text in folders for folder in text.split(":")]

    @property
    def first(self) -> int:
        """The link-time address of the file's begin, at a whole page."""
        return next((s[3] - s[2] & ~0xFFF for s in self._segments if s[0] == _LOAD), 0)

    @property
    def code(self) -> tuple[int, int]:
        """The lowest link-time address of a segment with code, and where that stands in the file."""
        return min(((s[3], s[2]) for s in self._segments if s[0] == _LOAD and s[1] & _EXECUTABLE), default=(0, 0))


def python_in(fd: int) -> Python | None:
    """The CPython that an open file defines; None if it defines none.

    Raises:
        ValueError: it is no ELF file.
        OSError: it cannot be read.
    """
    elf = ElfFile(fd)
    runtime = elf.symbol(b"_PyRuntime")
    if runtime is None:
        return None
    # Not for every command: to make the class of so many fields takes 2 ms.
    from wstrace_plugins.os.linux.cpython.layouts import DEBUG_OFFSETS_BYTES, NoLayoutError, layout

    at = elf.symbol(b"Py_Version")
    number = int.from_bytes(elf.data(at, 4), "little") if at is not None else 0
    found: Layout | None = None
    refused = ""
    if number:
        try:
            found = layout((number >> 24, number >> 16 & 255), elf.data(runtime, DEBUG_OFFSETS_BYTES))
        except NoLayoutError as why:
            refused = str(why)
    else:
        refused = "a CPython before 3.11 (it has no Py_Version): stacks are read of 3.11 to 3.14"
    return Python(found, refused, runtime, elf.kind == _MOVABLE, elf.first, *elf.code)
