"""Where members stand in the kernel's structures: BTF, the description that the kernel gives of itself.

Only what is asked for is looked up, as a scan of all types takes 0.1 s: names stand once in the strings, and a
structure is found by the offset of its name. Source: Documentation/bpf/btf.rst, include/uapi/linux/btf.h.
"""

from __future__ import annotations

import struct
from pathlib import Path

from wstrace.errors import Unavailable

_FILE = Path("/sys/kernel/btf/vmlinux")
_HEADER = struct.Struct("<HBBIIIII")  # magic, version, flags, header's size, types' offset and size, strings' both
_TYPE = struct.Struct("<III")  # name, kind and number of members, size
_MEMBER = struct.Struct("<III")  # name, type, offset in bits
_MAGIC, _STRUCT = 0xEB9F, 4
_MOST_MEMBERS = 4096


class KernelTypes:
    """The structures of the running kernel.

    Raises:
        Unavailable: this kernel does not describe itself.
    """

    def __init__(self, file: Path = _FILE) -> None:
        try:
            self._raw = raw = file.read_bytes()
            magic, _, _, header, types, types_size, strings, strings_size = _HEADER.unpack_from(raw)
        except (OSError, struct.error):
            raise Unavailable(
                "this kernel does not describe its structures (/sys/kernel/btf/vmlinux)",
                "run a kernel built with CONFIG_DEBUG_INFO_BTF",
            ) from None
        if magic != _MAGIC:
            raise Unavailable(f"{file} is no BTF of this machine's byte order")
        self._types = (header + types, header + types + types_size)
        self._strings = (header + strings, header + strings + strings_size)

    def offset(self, structure: str, member: str) -> int | None:
        """The offset of a member in bytes; None where the structure has none of that name."""
        wanted = self._name(member)
        for begin, count, flag in self._structures(structure):
            for i in range(count):
                bits: int
                name, _, bits = _MEMBER.unpack_from(self._raw, begin + i * _MEMBER.size)
                if name == wanted:
                    return (bits & 0xFFFFFF if flag else bits) // 8
        return None

    def _structures(self, structure: str) -> list[tuple[int, int, bool]]:
        """(where its members begin, their number, whether their offsets share a word with a bit-field's size)."""
        name = self._name(structure)
        if name is None:
            return []
        found, at = [], self._types[0]
        sought = struct.pack("<I", name)
        while (at := self._raw.find(sought, at, self._types[1])) >= 0:
            if (at - self._types[0]) % 4 == 0:
                _, info, size = _TYPE.unpack_from(self._raw, at)
                count, end = info & 0xFFFF, at + _TYPE.size + (info & 0xFFFF) * _MEMBER.size
                if info >> 24 & 31 == _STRUCT and 0 < count <= _MOST_MEMBERS and end <= self._types[1] and size:
                    found.append((at + _TYPE.size, count, bool(info >> 31)))
            at += 1
        return found

    def _name(self, text: str) -> int | None:
        at = self._raw.find(b"\0" + text.encode() + b"\0", *self._strings)
        return at + 1 - self._strings[0] if at >= 0 else None
