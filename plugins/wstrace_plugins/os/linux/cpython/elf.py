"""Whether an ELF file has a CPython in it: the symbols _PyRuntime and Py_Version, which stripped files keep.

Source: Include/patchlevel.h (PY_VERSION_HEX).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wstrace_plugins.os.elf import EXECUTABLE, MOVABLE, Elf, read_of

if TYPE_CHECKING:
    from wstrace_plugins.os.linux.cpython.layouts import Layout


#: distances within a larger file may be too long for a constant of an instruction
_MOST_BYTES = 1 << 30


class Python(NamedTuple):
    """A CPython in a file: its layout, or why it cannot be read (`refused`); the link-time address of _PyRuntime.

    movable: the address is relative to where the file's first segment (`first`, its link-time address) is mapped.
    code: the link-time address where its code begins, mm_struct.start_code of a process whose program it is.
    code_offset: where that stands in the file.
    static: where what is mapped of the file begins, from _PyRuntime on, and its bytes.
    """

    layout: Layout | None
    refused: str
    runtime: int
    movable: bool
    first: int
    code: int
    code_offset: int
    static: tuple[int, int]


def python_in(fd: int) -> Python | None:
    """The CPython that an open file defines; None if it defines none.

    Raises:
        ValueError: it is no ELF file, or cannot be read.
    """
    elf = Elf(read_of(fd))
    runtime = elf.symbol(b"_PyRuntime")
    if runtime is None:
        return None
    # Not for every command: to make the class of so many fields takes 2 ms.
    from wstrace_plugins.os.linux.cpython.layouts import DEBUG_OFFSETS_BYTES, READ, NoLayoutError, layout

    version = elf.symbol(b"Py_Version")
    number = int.from_bytes(_data(elf, version[0], 4), "little") if version is not None else 0
    found: Layout | None = None
    refused = ""
    if number:
        try:
            found = layout((number >> 24, number >> 16 & 255), _data(elf, runtime[0], DEBUG_OFFSETS_BYTES))
        except NoLayoutError as why:
            refused = str(why)
    else:
        refused = f"a CPython before 3.11 (it has no Py_Version): {READ}"
    first = next((one.address - one.offset & ~0xFFF for one in elf.loads), 0)
    code = min(((one.address, one.offset) for one in elf.loads if one.flags & EXECUTABLE), default=(0, 0))
    begin = min((one.address for one in elf.loads), default=0)
    size = max((one.address + one.size - begin for one in elf.loads), default=0)
    static = (begin - runtime[0], size) if size < _MOST_BYTES else (0, 0)
    return Python(found, refused, runtime[0], elf.kind == MOVABLE, first, *code, static)


def _data(elf: Elf, address: int, most: int) -> bytes:
    """What stands at an address before the file is run; less where its segment ends."""
    for one in elf.loads:
        if one.address <= address < one.address + one.size:
            return elf.content(elf.offset_of(address), min(most, one.address + one.size - address))
    return b""
