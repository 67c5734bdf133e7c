"""Headers of a PE image, in a file or as its loader mapped them.

Images are untrusted: each read is bounded, each count is checked.

Source: Microsoft Learn, "PE Format": COFF file header, optional header, section table, .debug section.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: (offset, size) -> exactly `size` bytes; raises ValueError where there are fewer.
Read = Callable[[int, int], bytes]

EXPORTS, EXCEPTIONS, DEBUG = 0, 3, 6  # IMAGE_DIRECTORY_ENTRY_*
_PE32, _PE32_PLUS, _CODEVIEW = 0x10B, 0x20B, 2
_MAX_SECTIONS = 4096  # the loader takes 96; tools write more into files that are never loaded
_MAX_DEBUG_ENTRIES = 64
_MAX_RECORD = 1 << 12

SECTION_HEADER = np.dtype([
    ("Name", "S8"), ("VirtualSize", "<u4"), ("VirtualAddress", "<u4"), ("SizeOfRawData", "<u4"),
    ("PointerToRawData", "<u4"), ("PointerToRelocations", "<u4"), ("PointerToLinenumbers", "<u4"),
    ("NumberOfRelocations", "<u2"), ("NumberOfLinenumbers", "<u2"), ("Characteristics", "<u4"),
])  # fmt: skip
assert SECTION_HEADER.itemsize == 40  # IMAGE_SECTION_HEADER


class Pe:
    """What the headers say.

    read: gives bytes of the file, or of the image in memory. machine, stamp: of the COFF file header. base, size:
    ImageBase and SizeOfImage. directories: (RVA, bytes) of each. Raises ValueError: they are cut off, or say what
    cannot be.
    """

    def __init__(self, read: Read) -> None:
        self.read = read
        if read(0, 2) != b"MZ":
            raise ValueError("the file does not begin with MZ")
        (at,) = struct.unpack("<I", read(0x3C, 4))  # e_lfanew
        signature, self.machine, self._count, self.stamp, optional_size = struct.unpack("<4sHHI8xH2x", read(at, 24))
        if signature != b"PE\0\0":
            raise ValueError("there is no PE signature")
        if not 0 < self._count <= _MAX_SECTIONS:
            raise ValueError(f"the file says that it has {self._count} sections")
        optional = read(at + 24, optional_size)
        self._sections_at = at + 24 + optional_size
        try:
            (magic,) = struct.unpack_from("<H", optional)
            if magic not in (_PE32, _PE32_PLUS):
                raise ValueError(f"optional header of kind {magic:#x}")
            wide = magic == _PE32_PLUS
            (self.base,) = struct.unpack_from("<Q" if wide else "<I", optional, 24 if wide else 28)
            (self.size,) = struct.unpack_from("<I", optional, 56)
            (given,) = struct.unpack_from("<I", optional, 108 if wide else 92)
        except struct.error:
            raise ValueError("the optional header is cut off") from None
        table = optional[112 if wide else 96 :]
        self.directories = [struct.unpack_from("<II", table, 8 * n) for n in range(min(given, 16, len(table) // 8))]

    @cached_property
    def sections(self) -> NDArray[Any]:
        """SECTION_HEADER rows. Raises ValueError where they are cut off."""
        return np.frombuffer(self.read(self._sections_at, self._count * SECTION_HEADER.itemsize), SECTION_HEADER)

    def directory(self, number: int) -> tuple[int, int]:
        """(RVA, bytes) of a data directory; (0, 0) where there is none."""
        return self.directories[number] if number < len(self.directories) else (0, 0)

    def place(self, rva: int) -> tuple[int, int]:
        """(place in the file, bytes of the section from there on) of an RVA; ValueError when no section has it."""
        for section in self.sections:
            inside, size = rva - int(section["VirtualAddress"]), int(section["SizeOfRawData"])
            if 0 <= inside < size:
                return int(section["PointerToRawData"]) + inside, size - inside
        raise ValueError(f"RVA {rva:#x} lies in no section")

    @property
    def stamp_id(self) -> str:
        """The id of a build without a PDB, in hexadecimal: time stamp and size, the same in a file and in memory."""
        return f"{self.stamp:08x}{self.size:x}"

    @property
    def build_id(self) -> str:
        """The id of a build, of its file, in hexadecimal: the GUID and age of its PDB, else its time stamp and size."""
        record = self._codeview
        return record[4:20].hex() + f"{struct.unpack_from('<I', record, 20)[0]:x}" if record else self.stamp_id

    @property
    def pdb(self) -> str:
        """The path of its PDB, as its linker wrote it; "" for none."""
        return self._codeview[24:].partition(b"\0")[0].decode("utf-8", "replace")

    @cached_property
    def _codeview(self) -> bytes:
        """The record RSDS of its file: signature, GUID, age, path; b"" without one."""
        rva, size = self.directory(DEBUG)
        try:
            start, _ = self.place(rva)
            for at in range(start, start + 28 * min(size // 28, _MAX_DEBUG_ENTRIES), 28):
                kind, length, _, pointer = struct.unpack("<4I", self.read(at + 12, 16))
                record = self.read(pointer, min(length, _MAX_RECORD)) if kind == _CODEVIEW and length >= 24 else b""
                if record.startswith(b"RSDS"):
                    return record
        except ValueError:  # damaged
            pass
        return b""
