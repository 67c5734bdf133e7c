"""The functions that an ELF file exports: where one of a name is.

Names of native frames are found when a report is made. Which frames are the Python interpreter's own loop is needed
before.

Source: elf(5).
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.stacks.sections import Read, sections_of

MOST_SYMBOLS = 1 << 18
MOST_NAME_BYTES = 16 << 20

_SHT_DYNSYM, _STT_FUNC = 11, 2
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
assert _SYMBOL.itemsize == 24


class DynamicSymbols:
    """The exported functions of a file; none where its tables cannot be read within the bounds.

    Args:
        read: gives bytes of the file.
    """

    def __init__(self, read: Read) -> None:
        self._names = b""
        self._functions: NDArray[np.void] = np.zeros(0, _SYMBOL)
        try:
            self._load(read)
        except (struct.error, ValueError, IndexError):
            return

    def _load(self, read: Read) -> None:
        sections = sections_of(read)
        for _, kind, _, _, offset, size, link, *_ in sections:
            if kind != _SHT_DYNSYM or size > MOST_SYMBOLS * _SYMBOL.itemsize:
                continue
            _, _, _, _, names_at, names_size, *_ = sections[link]
            if names_size <= MOST_NAME_BYTES:
                rows = read(offset, size)
                table = np.frombuffer(rows[: len(rows) // _SYMBOL.itemsize * _SYMBOL.itemsize], _SYMBOL)
                self._functions = table[(table["info"] & 15 == _STT_FUNC) & (table["section"] != 0)]
                self._names = read(names_at, names_size)
            return

    def range_of(self, name: bytes) -> tuple[int, int]:
        """The addresses [start, end) of the function of that name; (0, 0) where there is none."""
        at = self._names.find(b"\0" + name + b"\0") + 1
        rows = self._functions[self._functions["name"] == at] if at else self._functions[:0]
        if not len(rows):
            return 0, 0
        start = int(rows["value"][0])
        return start, start + int(rows["size"][0])
