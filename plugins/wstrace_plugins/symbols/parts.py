"""The named parts of a file: tensors of safetensors, sections of ELF. Nothing is trusted.

Headers are read up to a limit, every number is checked against the file's size, and what does not fit gives no parts.

Source: huggingface/safetensors README.md "Format"; elf(5).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from wstrace.interfaces import Part
from wstrace_plugins.symbols.image import ImageFile

MAX_HEADER = 32 << 20  # bytes
MAX_PARTS = 1 << 17
#: Marks between values in a header, of which a tensor has 12: a model in several files has some thousand in each.
#: More are not read, as 32 MiB of empty values would take seconds.
_MOST_VALUES = 1 << 20


def file_parts(file: ImageFile) -> list[Part]:
    """The named parts of an opened file, by their start; [] of an unknown format or an invalid header."""
    begin = file.read(0, min(16, file.size))
    reader: Callable[[ImageFile], list[Part]] | None = None
    if begin.startswith(b"\x7fELF"):
        from wstrace_plugins.symbols.elf import section_parts as reader
    elif begin[8:9] == b"{":
        reader = _safetensors
    if reader is None:
        return []
    try:
        parts = reader(file)
    except Exception:  # whatever a parser raises on hostile input means "not trusted"
        return []
    fitting = all(0 <= part.start <= part.end <= file.size for part in parts)
    return sorted(parts, key=lambda part: (part.start, part.end)) if fitting and len(parts) <= MAX_PARTS else []


def _safetensors(file: ImageFile) -> list[Part]:
    """The tensors that the header of a safetensors file lists."""
    (length,) = struct.unpack("<Q", file.read(0, 8))
    if length > min(MAX_HEADER, file.size - 8):
        return []
    text = file.read(8, length)
    if sum(text.count(mark) for mark in (b",", b":", b"[", b"{")) > _MOST_VALUES:
        return []
    header = json.loads(text)
    data = 8 + length
    found = [Part("(header)", 0, data)]
    for name, tensor in header.items():
        if name != "__metadata__":
            start, end = (_whole(offset) for offset in tensor["data_offsets"])
            found.append(Part(name, data + start, data + end))
    return found


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value
