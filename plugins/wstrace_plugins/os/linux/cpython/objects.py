"""What bytes of CPython's objects say: lines of code objects, from their location tables (3.11 on), and strings.

A table may be damaged or cut: what it does not say is None.
Source: PEP 626, Objects/locations.md and Include/cpython/unicodeobject.h in CPython.
"""

from __future__ import annotations

import bisect

_NO_LOCATION, _LONG, _NO_COLUMNS, _ONE_LINE = 15, 14, 13, 10
#: what the state of a string says of its characters: bits 2 to 4 have the bytes of one, bit 6 that all are ASCII
KIND_SHIFT, KIND_MASK, ASCII_BIT = 2, 7, 6
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


class LineTable:
    """The line of each code unit (two bytes of instructions). table: co_linetable. first: co_firstlineno."""

    def __init__(self, table: bytes, first: int) -> None:
        self._starts, self._lines, self._end = _entries(table, first)

    def line(self, unit: int) -> int | None:
        """The line of the instruction at that code unit; None where it has none or the table does not reach it."""
        if not 0 <= unit < self._end:
            return None
        return self._lines[bisect.bisect_right(self._starts, unit) - 1]


def _entries(table: bytes, line: int) -> tuple[list[int], list[int | None], int]:
    """The first units of the entries, their lines, and the unit behind the last one."""
    starts: list[int] = []
    lines: list[int | None] = []
    at = unit = 0
    while at < len(table):
        head = table[at]
        code = head >> 3 & 15
        if not head & 128:
            break  # no entry begins like that
        at += 1
        here: int | None = None
        if code == _NO_LOCATION:
            pass
        elif code in (_LONG, _NO_COLUMNS):
            value, at = _number(table, at)
            line += -(value >> 1) if value & 1 else value >> 1
            here = line
            for _ in range(3 * (code == _LONG)):
                _, at = _number(table, at)
        elif code >= _ONE_LINE:
            line += code - _ONE_LINE
            here = line
            at += 2
        else:
            here = line
            at += 1
        if at > len(table):
            break  # the table is cut
        starts.append(unit)
        lines.append(here if here is None or 0 < here < 1 << 31 else None)
        unit += (head & 7) + 1
    return starts, lines, unit


def _number(table: bytes, at: int) -> tuple[int, int]:
    """A number of 6 bits a byte, the lowest first, and the place behind it."""
    value = shift = 0
    while at < len(table):
        byte = table[at]
        at += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            return value, at
        if shift > 36:
            break
    return value, len(table) + 1


def characters(raw: bytes, state: int, length: int) -> str:
    """The characters of a CPython string: what fitted into the room, with `...` where it was longer."""
    width = 1 if state >> ASCII_BIT & 1 else state >> KIND_SHIFT & KIND_MASK
    size = length * width
    whole = raw[: min(size, len(raw) // max(width, 1) * max(width, 1))]
    encoding = _ENCODINGS.get(width, "latin-1")
    try:
        text = whole.decode(encoding, "surrogatepass" if width > 1 else "strict")
    except UnicodeDecodeError:
        text = whole.decode(encoding, "replace")
    return text if size <= len(raw) else text[:-3] + "..."
