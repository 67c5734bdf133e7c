"""The files that processes map as code, opened once each, and only where they are proven to be what was mapped."""

from __future__ import annotations

import functools
import os
from collections import OrderedDict
from typing import NamedTuple

from wstrace.batch import Dictionary
from wstrace.schema import KIND_SHIFT, KIND_VDSO
from wstrace_plugins.os.elf import DYNAMIC_SYMBOLS, Read, read_of
from wstrace_plugins.os.linux.named_file import is_mapped, open_mapped
from wstrace_plugins.os.linux.procfs import own_vdso
from wstrace_plugins.stacks.eh_frame import UnwindFile
from wstrace_plugins.stacks.rules import FLAGS, Rule

MOST_OPEN = 64  # a table has up to 8 MiB
#: the name of CPython's loop: exported by all builds, stripped ones too
_LOOP = b"_PyEval_EvalFrameDefault"


class CodeMapping(NamedTuple):
    """A row of the `mapping` stream of executable memory."""

    id: int
    time_ns: int
    pid: int
    start: int
    end: int
    offset: int
    file: int
    dev: int
    ino: int
    build_id: int
    flags: int

    @property
    def which_file(self) -> tuple[int, int, int, int]:
        """What distinguishes the mapped file from others, also from one with its name in another root."""
        return self.dev, self.ino, self.build_id, self.file

    @property
    def is_vdso(self) -> bool:
        """Whether it is the kernel's own image."""
        return self.flags >> KIND_SHIFT & 15 == KIND_VDSO


class Loop(NamedTuple):
    """Where CPython's loop is in a file: its addresses [start, end), and the rule in its middle, None = not known."""

    start: int
    end: int
    rule: Rule | None

    @classmethod
    def of(cls, file: UnwindFile) -> Loop:
        """The loop in a file; of no address where it has none."""
        try:
            start, size = file.elf.symbol(_LOOP, (DYNAMIC_SYMBOLS,)) or (0, 0)
        except ValueError:
            start = size = 0
        rule = file.rule(start + size // 2) if size else None
        return cls(start, start + size, None if rule == file.first_rule(start) else rule)

    def has(self, file: UnwindFile, address: int) -> bool:
        """Whether an address is in the loop, or in the part of it that a compiler has put elsewhere: `.cold`.

        That part has no exported name, but it begins within the loop's frame, as no function does. What the frame saves
        may differ: a register that only a part of a function needs is saved on the way there. GCC 16 puts nearly all of
        the loop there (Debian's CPython 3.14.10: 1,184 bytes in the function, 84,423 elsewhere).
        """
        if self.start <= address < self.end:
            return True
        first = file.first_rule(address) if self.rule is not None else None
        return first is not None and self.rule is not None and first[:FLAGS] == self.rule[:FLAGS]


class Images:
    """Unwinding information by mapping. At most MOST_OPEN files are open: the least recently used is closed."""

    def __init__(self, strings: Dictionary) -> None:
        self._strings = strings
        self._files: OrderedDict[tuple[int, ...], tuple[int, UnwindFile | None]] = OrderedDict()

    def of(self, mapping: CodeMapping) -> UnwindFile | None:
        """What is known of the file that is mapped there; None where no file is proven to be that."""
        if mapping.is_vdso:
            return _vdso()
        name = self._strings[mapping.file]
        if not name.startswith("/"):
            return None
        key = mapping.which_file
        if key not in self._files:
            self._files[key] = self._opened(mapping, name)
            if len(self._files) > MOST_OPEN:
                _, (fd, _) = self._files.popitem(last=False)
                _close(fd)
        self._files.move_to_end(key)
        return self._files[key][1]

    def close(self) -> None:
        """Closes the files."""
        while self._files:
            _close(self._files.popitem()[1][0])

    def _opened(self, mapping: CodeMapping, name: str) -> tuple[int, UnwindFile | None]:
        build_id = self._strings[mapping.build_id]
        image: UnwindFile | None = None

        def proven(fd: int) -> bool:
            nonlocal image
            image = _image(read_of(fd))
            if build_id:
                return image is not None and image.elf.build_id == build_id
            return is_mapped(fd, mapping.dev, mapping.ino)

        fd = open_mapped(mapping.pid, name, mapping.ino, proven, (mapping.start, mapping.end))
        return fd, image if fd >= 0 else None


def _image(read: Read) -> UnwindFile | None:
    try:
        return UnwindFile(read)
    except ValueError:
        return None


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


@functools.cache
def _vdso() -> UnwindFile | None:
    """The kernel's image, the same in every process of this kernel."""
    image = own_vdso()
    return _image(lambda offset, size: image[offset : offset + size])
