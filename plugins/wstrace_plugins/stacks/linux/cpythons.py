"""The CPython that a process's loop of it belongs to: its layout, its loop, and where its types are in the process."""

from __future__ import annotations

from typing import NamedTuple

from wstrace_plugins.os.linux.cpython.elf import ElfFile, python_in
from wstrace_plugins.os.linux.cpython.layouts import Layout
from wstrace_plugins.stacks.linux.code_objects import Types
from wstrace_plugins.stacks.linux.handlers import Handlers
from wstrace_plugins.stacks.linux.images import CodeMapping, Images
from wstrace_plugins.stacks.linux.loops import Loop

_TYPES = (b"PyCode_Type", b"PyUnicode_Type", b"PyBytes_Type")
MOST_FILES = 256


class CPython(NamedTuple):
    """A file with a CPython: its layout, the link-time addresses of its types, its code for instructions, if known."""

    layout: Layout
    types: Types
    handlers: Handlers | None

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
            self._files[key] = self._cpython(mapping)
        return self._files[key]

    def _cpython(self, mapping: CodeMapping) -> CPython | None:
        fd, image = self._images.descriptor(mapping), self._images.of(mapping)
        if image is None:
            return None
        try:
            python, elf = python_in(fd), ElfFile(fd)
            if python is None or python.layout is None:
                return None
            addresses = [elf.symbol(name) for name in _TYPES]
        except (OSError, ValueError, IndexError):
            return None
        if None in addresses:
            return None
        handlers = Handlers.of(elf, python.layout.version, Loop.of(image, fd).code)
        return CPython(python.layout, Types(*(address or 0 for address in addresses)), handlers)
