"""Writes protobuf messages, field by field: the wire format alone, for formats that have a few messages.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterable

_VARINT, _LENGTH = 0, 2
_MASK = (1 << 64) - 1
_SHORT = [bytes((n,)) for n in range(128)]


def varint(n: int) -> bytes:
    """A number of at most 64 bits; a negative one as its two's complement."""
    if 0 <= n < 128:
        return _SHORT[n]
    n &= _MASK
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def number(field: int, n: int) -> bytes:
    """A field of a number, also where it is 0: in a `oneof`, or of proto2, that is not the same as none."""
    return varint(field << 3 | _VARINT) + varint(n)


def data(field: int, content: bytes | str) -> bytes:
    """A field of bytes, of a text, or of another message."""
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | _LENGTH) + varint(len(content)) + content


def packed(field: int, numbers: Iterable[int]) -> bytes:
    """A repeated field of numbers."""
    return data(field, b"".join(map(varint, numbers)))
