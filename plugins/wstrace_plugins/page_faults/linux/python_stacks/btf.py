"""Where members stand in the kernel's structures: BTF, the description that the kernel gives of itself.

Only what is asked for is looked up, as a scan of all types takes 0.1 s: a name stands once among the names, and a
structure is found by its place there. Source: Documentation/bpf/btf.rst, include/uapi/linux/btf.h.
"""

from __future__ import annotations

import os
import struct
from io import FileIO

import numpy as np

from wstrace.errors import Unavailable

_FILE = "/sys/kernel/btf/vmlinux"
_HEADER = struct.Struct("<HBBIIIII")  # magic, version, flags, header's size, types' offset and size, strings' both
_MAGIC, _STRUCT = 0xEB9F, 4
#: 32-bit words of a type (name, kind and number of members, size) and of a member of a structure
_HEAD_WORDS, _MEMBER_WORDS = 3, 3
_MOST_MEMBERS, _MOST_NESTED = 4096, 256
_NOWHERE = 0xFFFFFFFF


class KernelTypes:
    """The structures of the running kernel.

    Args:
        file: the description.
        begin: bytes of the types and of the names that are read: the structures of a task stand near the begin.

    Raises:
        Unavailable: this kernel does not describe itself.
    """

    def __init__(self, file: str | os.PathLike[str] = _FILE, begin: int = 1 << 20) -> None:
        try:
            with open(file, "rb", buffering=0) as opened:
                magic, _, _, header, types, types_size, names, names_size = _HEADER.unpack(opened.read(_HEADER.size))
                opened.seek(header + types)
                self._types = np.frombuffer(_read(opened, min(types_size, begin)), "<u4")
                opened.seek(header + names)
                self._names = _read(opened, min(names_size, begin))
        except (OSError, struct.error):
            raise Unavailable(
                "this kernel does not describe its structures (/sys/kernel/btf/vmlinux)",
                "run a kernel built with CONFIG_DEBUG_INFO_BTF",
            ) from None
        self._found: dict[str, int] = {}
        if magic != _MAGIC:
            raise Unavailable(f"{file} is no BTF of this machine's byte order")

    def offset(self, structure: str, member: str) -> int | None:
        """The offset of a member in bytes; None where the structure has none of that name."""
        wanted = self._name(member)
        for at in np.flatnonzero(self._types == self._name(structure)).tolist():
            info = int(self._types[at + 1]) if at + 1 < len(self._types) else 0
            count, end = info & 0xFFFF, at + _HEAD_WORDS + (info & 0xFFFF) * _MEMBER_WORDS
            if info >> 24 & 31 != _STRUCT or not 0 < count <= _MOST_MEMBERS or end > len(self._types):
                continue
            members = self._types[at + _HEAD_WORDS : end].reshape(count, _MEMBER_WORDS)  # name, type, offset in bits
            hit = members[members[:, 0] == wanted]
            if len(hit):
                bits = int(hit[0, 2])
                return (bits & 0xFFFFFF if info >> 31 else bits) // 8
        return None

    def nested(self, structure: str, members: tuple[str, ...]) -> tuple[int, ...] | None:
        """The offsets of members of the structure without a name that a structure begins with (struct mm_struct).

        It is found by its members: None where not exactly one structure without a name has all of these.
        """
        begins = [at + _HEAD_WORDS for at in np.flatnonzero(self._types == self._name(structure)).tolist()]
        if not any(self._types[at : at + _MEMBER_WORDS : 2].tolist() == [0, 0] for at in begins):
            return None
        names, found = [self._name(member) for member in members], []
        for at in np.flatnonzero(self._types == names[0]).tolist():
            for head in range(
                at - _HEAD_WORDS, max(at - _HEAD_WORDS - _MOST_NESTED * _MEMBER_WORDS, 0), -_MEMBER_WORDS
            ):
                info = int(self._types[head + 1])
                end = head + _HEAD_WORDS + (info & 0xFFFF) * _MEMBER_WORDS
                if self._types[head] or info >> 24 & 31 != _STRUCT or not at < end <= len(self._types):
                    continue
                table = self._types[head + _HEAD_WORDS : end].reshape(-1, _MEMBER_WORDS)
                bits = {name: offset for name, _, offset in table.tolist() if name in names}
                if len(bits) == len(names):
                    found.append(tuple((bits[name] & 0xFFFFFF if info >> 31 else bits[name]) // 8 for name in names))
                break
        return found[0] if len(found) == 1 else None

    def _name(self, text: str) -> int:
        if text not in self._found:  # most are asked for several times, and a search takes 10 us of each start
            at = self._names.find(b"\0" + text.encode() + b"\0")
            self._found[text] = at + 1 if at >= 0 else _NOWHERE
        return self._found[text]


def _read(file: FileIO, size: int) -> bytes:
    """That many bytes: a read of sysfs gives a page at a time."""
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)[: sum(map(len, parts)) // 4 * 4]
