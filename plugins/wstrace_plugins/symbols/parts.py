"""The named parts of a file: tensors of safetensors and GGUF, the array of .npy, sections of ELF. Nothing is trusted.

Headers are read up to a limit, every number is checked against the file's size, and what does not fit gives no parts.

Source: the formats' own descriptions: huggingface/safetensors README.md "Format"; ggml-org/ggml docs/gguf.md;
numpy/lib/format.py; elf(5).
"""

from __future__ import annotations

import ast
import json
import struct
from collections.abc import Callable
from typing import Any

from wstrace.places import Part
from wstrace_plugins.symbols.image import ImageFile

MAX_HEADER = 32 << 20  # bytes; the vocabulary in the header of a large language model's GGUF takes 2 to 8 MiB
MAX_PARTS = 1 << 17
_DEPTH = 8  # of arrays in GGUF
#: Strings and arrays in a GGUF header: more than a vocabulary of 256,000 tokens with as many merges has, twice. Marks
#: between values in a safetensors header, of which a tensor has 12: a model that is in several files has some thousand
#: tensors in each. More are not read, as 32 MiB of empty values would take seconds.
_MOST_VALUES = 1 << 20
#: GGUF's value types -> bytes: u8 i8 u16 i16 u32 i32 f32 bool, 10 u64 11 i64 12 f64
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9


def file_parts(file: ImageFile) -> list[Part]:
    """The named parts of an opened file, by their start; [] of a file of no known format, or of one that lies."""
    begin = file.read(0, min(16, file.size))
    reader: Callable[[ImageFile], list[Part]] | None = None
    if begin.startswith(b"\x7fELF"):
        from wstrace_plugins.symbols.elf import section_parts as reader
    elif begin.startswith(b"GGUF"):
        reader = _gguf
    elif begin.startswith(b"\x93NUMPY"):
        reader = _npy
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


def _npy(file: ImageFile) -> list[Part]:
    major = file.read(6, 1)[0]
    wide = major >= 2
    (length,) = struct.unpack("<I" if wide else "<H", file.read(8, 4 if wide else 2))
    data = (12 if wide else 10) + length
    if length > 1 << 16:  # numpy itself reads no longer one without being told to
        return []
    header = ast.literal_eval(file.read(data - length, length).decode("latin-1"))
    shape = "x".join(str(_whole(n)) for n in header["shape"]) or "scalar"
    kind = header["descr"] if isinstance(header["descr"], str) else "structure"
    return [Part("(header)", 0, data), Part(f"array {kind} {shape}", data, file.size)]


class _Reader:
    """Reads numbers and texts one after another from the bytes of a header."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0
        self._values = 0

    def take(self, n: int) -> bytes:
        if not 0 <= n <= len(self._data) - self.at:
            raise EOFError
        self.at += n
        return self._data[self.at - n : self.at]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def text(self) -> str:
        return self.take(self.u64()).decode("utf-8", "backslashreplace")

    def skip(self, kind: int, depth: int = 0) -> None:
        """Passes over a value of a type. Of empty ones 32 MiB hold millions: so many are not believed."""
        self._values += 1
        if self._values > _MOST_VALUES:
            raise ValueError
        if kind == _STRING:
            self.take(self.u64())
        elif kind == _ARRAY and depth < _DEPTH:
            kind, n = self.u32(), self.u64()
            if kind in _SIZES:
                self.take(n * _SIZES[kind])
                return
            for _ in range(n):  # each takes at least the 8 bytes of its length
                self.skip(kind, depth + 1)
        else:
            self.take(_SIZES[kind])


def _gguf(file: ImageFile) -> list[Part]:
    head = _Reader(file.read(0, min(file.size, MAX_HEADER)))
    head.take(4)
    if head.u32() not in (2, 3):
        return []
    tensors, values, alignment = head.u64(), head.u64(), 32
    if tensors > MAX_PARTS:
        return []
    for _ in range(values):
        name, kind = head.text(), head.u32()
        if name == "general.alignment" and kind == 4:
            alignment = max(head.u32(), 1)
        else:
            head.skip(kind)
    starts: list[tuple[int, str]] = []
    for _ in range(tensors):
        name = head.text()
        head.take(8 * min(head.u32(), 1 << 10) + 4)  # its shape and type
        starts.append((head.u64(), name))
    data = -(-head.at // alignment) * alignment
    starts.sort()
    # the sizes follow from the types, which grow in number; a tensor ends where the next one begins at the latest
    ends = [start for start, _ in starts[1:]] + [file.size - data]
    found = [Part(name, data + start, data + end) for (start, name), end in zip(starts, ends, strict=False)]
    return [Part("(header)", 0, data), *found]
