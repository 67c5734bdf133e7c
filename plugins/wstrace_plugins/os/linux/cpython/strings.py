"""Strings of CPython, from the bytes of their characters.

Source: Include/cpython/unicodeobject.h.
"""

from __future__ import annotations

#: what the state of a string says of its characters: bits 2 to 4 have the bytes of one, bit 6 that all are ASCII
KIND_SHIFT, KIND_MASK, ASCII_BIT = 2, 7, 6
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


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
