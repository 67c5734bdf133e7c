"""The CPython that a process's loop of it belongs to: its layout, and where its types are in the process."""

from __future__ import annotations

from typing import NamedTuple

from wstrace_os.linux.cpython.elf import ElfFile, python_in
from wstrace_os.linux.cpython.layouts import Layout
from wstrace_stacks.linux.code_objects import Types
from wstrace_stacks.linux.images import CodeMapping, Images

_TYPES = (b"PyCode_Type", b"PyUnicode_Type", b"PyBytes_Type")
MOST_FILES = 256


class CPython(NamedTuple):
    """A file with a CPython: its layout, and the link-time addresses of its types."""

    layout: Layout
    types: Types

    def types_in(self, bias: int) -> Types:
        """Where its types are in a process: bias is what its mapping adds to link-time addresses."""
        return Types(*(address + bias for address in self.types))


class CPythons:
    """The files that were looked into."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self._files: dict[tuple[int, ...], CPython | None] = {}

    def of(self, mapping: CodeMapping) -> CPython | None:
        """The CPython in a mapped file; None where it has none whose code objects are known."""
        key = mapping.which_file
        if key not in self._files:
            if len(self._files) >= MOST_FILES:
                self._files.clear()
            self._files[key] = _cpython(self._images.descriptor(mapping))
        return self._files[key]


def _cpython(fd: int) -> CPython | None:
    try:
        python, elf = python_in(fd), ElfFile(fd)
        addresses = [elf.symbol(name) for name in _TYPES]
    except (OSError, ValueError, IndexError):
        return None
    if python is None or python.layout is None or None in addresses:
        return None
    return CPython(python.layout, Types(*(address or 0 for address in addresses)))
