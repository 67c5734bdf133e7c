"""DWARF's numbers, encoded pointers and expressions, read from bytes that may come from anyone.

Every read past the end raises IndexError or struct.error, which the callers take as "no rule".

Source: DWARF 5, 7.6 (LEB128), 2.5 (expressions); Linux Standard Base 5.0, 10.5 (pointer encodings).
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from typing import NamedTuple

MASK = (1 << 64) - 1
_MOST_LEB_BYTES = 10
_MOST_VALUES = 64

#: DW_EH_PE_*: the low four bits of an encoding
_FORMATS = {0: "<Q", 2: "<H", 3: "<I", 4: "<Q", 10: "<h", 11: "<i", 12: "<q"}
_ULEB, _SLEB, OMITTED = 1, 9, 0xFF
_PC_RELATIVE, _DATA_RELATIVE = 0x10, 0x30


def uleb(data: bytes, at: int) -> tuple[int, int]:
    """The ULEB128 at that index, and the index behind it."""
    value = shift = 0
    for count in range(_MOST_LEB_BYTES):
        byte = data[at + count]
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value & MASK, at + count + 1
    raise IndexError("a LEB128 of more than 64 bits")


def sleb(data: bytes, at: int) -> tuple[int, int]:
    """The SLEB128 at that index, and the index behind it."""
    value, end = uleb(data, at)
    bits = min(7 * (end - at), 64)
    return value - (1 << bits) if value >> (bits - 1) & 1 else value, end


def pointer(data: bytes, at: int, encoding: int, address: int, base: int = 0) -> tuple[int, int]:
    """The encoded pointer at an index, u64, and the index behind it.

    Args:
        data, at: the bytes and the index.
        encoding: DW_EH_PE_*; an indirect one is not followed.
        address: the address of the bytes at that index. base: what data-relative pointers count from.
    """
    form = encoding & 15
    if form == _ULEB:
        value, end = uleb(data, at)
    elif form == _SLEB:
        value, end = sleb(data, at)
    else:
        layout = _FORMATS[form]
        (value,) = struct.unpack_from(layout, data, at)
        end = at + struct.calcsize(layout)
    relative = encoding & 0x70
    value += address if relative == _PC_RELATIVE else base if relative == _DATA_RELATIVE else 0
    return value & MASK, end


class Value(NamedTuple):
    """What an expression gives: offset, or a register plus offset, or the u64 loaded from there plus `added`."""

    register: int | None
    offset: int
    loaded: bool = False
    added: int = 0

    def plus(self, number: int) -> Value:
        """This value plus a number."""
        return self._replace(added=self.added + number) if self.loaded else self._replace(offset=self.offset + number)

    @property
    def constant(self) -> int | None:
        """The number, where it depends on no register and no memory."""
        return self.offset if self.register is None and not self.loaded else None


_CONSTANTS = {8: "<B", 9: "<b", 10: "<H", 11: "<h", 12: "<I", 13: "<i", 14: "<Q", 15: "<q"}
_ARITHMETIC: dict[int, Callable[[int, int], int]] = {
    0x1A: operator.and_,
    0x1E: operator.mul,
    0x21: operator.or_,
    0x24: lambda a, b: a << min(b & MASK, 64),
    0x25: lambda a, b: (a & MASK) >> min(b & MASK, 64),
    0x27: operator.xor,
    0x29: lambda a, b: int(a == b),
    0x2A: lambda a, b: int(a >= b),
    0x2B: lambda a, b: int(a > b),
    0x2C: lambda a, b: int(a <= b),
    0x2D: lambda a, b: int(a < b),
    0x2E: lambda a, b: int(a != b),
}
_DEREFERENCE, _CONSTU, _CONSTS, _PLUS, _MINUS, _PLUS_UCONST, _LITERAL, _REGISTER = (
    0x06, 0x10, 0x11, 0x22, 0x1C, 0x23, range(0x30, 0x50), range(0x70, 0x90),
)  # fmt: skip


def evaluate(data: bytes, pc: int, return_column: int) -> Value | None:
    """The value of an expression at a known program counter; None where that is not one of the forms of Value.

    The program counter is known here, so what a procedure linkage table computes from it is a constant.
    """
    values: list[Value] = []
    at = 0
    while at < len(data) and len(values) < _MOST_VALUES:
        code = data[at]
        at += 1
        if code in _REGISTER:
            offset, at = sleb(data, at)
            register = code - _REGISTER.start
            values.append(Value(None, pc + offset) if register == return_column else Value(register, offset))
        elif code in _LITERAL:
            values.append(Value(None, code - _LITERAL.start))
        elif code in _CONSTANTS:
            (number,) = struct.unpack_from(_CONSTANTS[code], data, at)
            at += struct.calcsize(_CONSTANTS[code])
            values.append(Value(None, number))
        elif code in (_CONSTU, _CONSTS):
            number, at = (uleb if code == _CONSTU else sleb)(data, at)
            values.append(Value(None, number))
        elif code == _PLUS_UCONST:
            number, at = uleb(data, at)
            values.append(values.pop().plus(number))
        elif code == _DEREFERENCE:
            top = values.pop()
            if top.loaded or top.register is None:
                return None
            values.append(top._replace(loaded=True))
        elif code in (_PLUS, _MINUS) or code in _ARITHMETIC:
            second, first = values.pop(), values.pop()
            made = _combined(code, first, second)
            if made is None:
                return None
            values.append(made)
        else:
            return None
    return values[-1] if values and at >= len(data) else None


def _combined(code: int, first: Value, second: Value) -> Value | None:
    left, right = first.constant, second.constant
    if code in (_PLUS, _MINUS):
        if right is not None:
            return first.plus(right if code == _PLUS else -right)
        return second.plus(left) if left is not None and code == _PLUS else None
    if left is None or right is None:
        return None
    number = _ARITHMETIC[code](left, right) & MASK
    return Value(None, number - (1 << 64) if number >> 63 else number)
