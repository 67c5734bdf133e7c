"""ELF and PE files that lie: about sizes, counts and places. Large ones are sparse."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

Parts = list[tuple[int, bytes]]
GIB = 1 << 30


def header(programs: tuple[int, int], sections: tuple[int, int, int] = (0, 0, 0), kind: int = 3) -> bytes:
    """Elf64_Ehdr: (e_phoff, e_phnum), (e_shoff, e_shnum, e_shstrndx), e_type."""
    identity = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    return identity + struct.pack("<HHIQQQIHHHHHH", kind, 62, 1, 0, programs[0], sections[0], 0, 64, 56, programs[1],
                                  64, sections[1], sections[2])  # fmt: skip


def program(kind: int, offset: int, size: int, address: int = 0) -> bytes:
    """Elf64_Phdr."""
    return struct.pack("<IIQQQQQQ", kind, 5, offset, address, address, size, size, 4096)


def section(kind: int, offset: int = 0, size: int = 0, *, flags: int = 0, address: int = 0, link: int = 0) -> bytes:
    """Elf64_Shdr."""
    return struct.pack("<IIQQQQIIQQ", 0, kind, flags, address, offset, size, link, 0, 1, 0)


LOAD, NOTE = 1, 4


def _symbols(count: int) -> bytes:
    fields = [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
    rows = np.zeros(count, np.dtype(fields))
    rows["name"], rows["info"], rows["section"], rows["size"] = 1, 2, 3, 1 << 40
    rows["value"] = np.arange(count)[::-1]
    return rows.tobytes()


def _tables(symbols: int, strings: tuple[int, int], table: bytes = b"", at: int = 1 << 20) -> Parts:
    text = section(1, 0x1000, 0x10000, flags=6, address=0x1000)
    heads = [section(0), section(2, at, symbols, link=2), section(3, *strings), text]
    return [(0, header((64, 1), (4096, 4, 0))), (64, program(LOAD, 0, 1 << 20)), (4096, b"".join(heads)),
            (strings[0], b"\0_ZN4fooEv\0"), (at, table)]  # fmt: skip


def _many_loads() -> Parts:
    return [(0, header((64, 4000))), (64, b"".join(program(LOAD, 0, 1 << 30, n << 30) for n in range(4000)))]


#: name -> (size of the file, what stands in it)
ELF: dict[str, Callable[[], tuple[int, Parts]]] = {
    "a note of 4 GB": lambda: (5 * GIB, [
        (0, header((64, 2))), (64, program(LOAD, 0, 8192) + program(NOTE, 4096, 4096, 4096)),
        (4096, struct.pack("<III", 4, 0xF0000000, 3) + b"GNU\0"),
    ]),
    "4,096 segments of 5,400 notes": lambda: (64 + 56 * 4096 + (80 << 10), [
        (0, header((64, 4096))), (64, program(NOTE, 64 + 56 * 4096, 64 << 10) * 4096),
        (64 + 56 * 4096, struct.pack("<III", 0, 0, 1) * 5400),
    ]),
    "a list of 2^40 files": lambda: (1 << 20, [
        (0, header((64, 1), kind=4)), (64, program(NOTE, 4096, 65536)),
        (4096, struct.pack("<III", 5, 16, 0x46494C45) + b"CORE\0\0\0\0" + struct.pack("<QQ", 0xFFFFFFFFFF, 4096)),
    ]),
    "properties of 4 GB": lambda: (5 * GIB, [
        (0, header((64, 1))), (64, program(NOTE, 4096, 65536)),
        (4096, struct.pack("<III", 4, 0xFFFFFFF0, 5) + b"GNU\0"),
    ]),
    "tables of 500 MB": lambda: (2 * GIB, _tables(500 << 20, (1 << 20, 500 << 20))),
    "8,388,608 symbols": lambda: ((1 << 20) + (24 << 23), _tables(24 << 23, (1 << 19, 100), _symbols(1 << 23))),
    "as many symbols as are read": lambda: (256 << 20, _tables(24 << 20, (128 << 20, 40 << 20), _symbols(1 << 20))),
    "2^32 section headers": lambda: (1 << 20, [
        (0, header((64, 0xFFFF), (4096, 0, 0xFFFF))),
        (4096, struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 1 << 60, 0xFFFFFFF0, 0, 1, 0)),
    ]),
    "4,000 segments in memory": lambda: (1 << 20, _many_loads()),
}  # fmt: skip


def pe(symbols: int, sections: int = 1, exports: int = 0, size: int = 0) -> Parts:
    """A PE32+ file with a COFF symbol table of so many rows at 1 MiB, and an export directory at 0x1000."""
    optional = struct.pack("<H22xQ24xI48xI", 0x20B, 0x140000000, 0x7FFFFFFF, 16)
    optional += struct.pack("<II", 0x1000 if exports else 0, 0x100) + bytes(120)
    coff = struct.pack("<4sHHIIIHH", b"PE\0\0", 0x8664, sections, 1, 1 << 20, symbols, len(optional), 0x22)
    head = struct.pack("<8sIIIIIIHHI", b".text", 0x7F000000, 0x1000, size, 0x1000, 0, 0, 0, 0, 0x60000020)
    directory = struct.pack("<12xII5I", 0, 0, exports, exports, 0x2000, 0x2000, 0x2000)
    return [(0, b"MZ"), (0x3C, struct.pack("<I", 64)), (64, coff + optional + head * sections), (0x1000, directory)]


def _coff(count: int) -> bytes:
    row = struct.pack("<IIIhHBB", 0, 4, 0, 1, 0x20, 2, 0)
    rows = np.frombuffer(row * count, "u1").reshape(count, 18).copy()
    rows[:, 8:12] = np.arange(count, dtype="<u4").view("u1").reshape(count, 4)
    return rows.tobytes()


PE: dict[str, Callable[[], tuple[int, Parts]]] = {
    "4,194,304 COFF symbols": lambda: (GIB, [*pe(1 << 22), (1 << 20, _coff(1 << 22))]),
    "a string table of 4 GB": lambda: (5 * GIB, [*pe(1), ((1 << 20) + 18, struct.pack("<I", 0xF0000000))]),
    "as many COFF symbols as are read": lambda: (
        GIB, [*pe(1 << 20), (1 << 20, _coff(1 << 20)), ((1 << 20) + (18 << 20), struct.pack("<I", 0x7F000000))],
    ),
    "2^32 exports": lambda: (2 * GIB, pe(0, exports=0xFFFFFFFF, size=0x7F000000)),
    "1,048,576 exports": lambda: (2 * GIB, pe(0, exports=1 << 20, size=0x7F000000)),
    "4,096 sections": lambda: (GIB, pe(0, 4096, exports=1 << 20, size=0x1000)),
}  # fmt: skip


def write(path: Path, size: int, parts: Parts) -> Path:
    """Such a file."""
    with path.open("wb") as file:
        file.truncate(size)
        for offset, content in parts:
            file.seek(offset)
            file.write(content)
    return path
