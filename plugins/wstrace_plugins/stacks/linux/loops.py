"""Where CPython's loop is in a file: in the function of that name, or in a part of it that is put elsewhere."""

from __future__ import annotations

from typing import NamedTuple

from wstrace_plugins.os.linux.cpython.elf import ElfFile
from wstrace_plugins.stacks.linux.handlers import ENTRIES, tables
from wstrace_plugins.stacks.linux.images import Image
from wstrace_plugins.stacks.rules import FLAGS, Rule

#: the name of the loop: exported by all builds, stripped ones too
LOOP = b"_PyEval_EvalFrameDefault"
#: the code for all instructions is larger than that: 50,000 bytes and more
_LEAST_BYTES = 4096
#: one of so many words of a table of the code for instructions is looked at
_STEP = ENTRIES // 2


class Loop(NamedTuple):
    """Where CPython's loop is in a file: its addresses [start, end), and the rule in its middle.

    rule: None where nothing is known from it, as it is that of the function's first instruction.
    moved: the part of the loop that has the code for instructions, where that is not in the function itself; GCC 16
        takes all of it for `.cold` (Debian's CPython 3.14.10: 1,184 bytes of the function, 84,423 elsewhere).
    """

    start: int
    end: int
    rule: Rule | None
    moved: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, image: Image, fd: int) -> Loop:
        """The loop in a file, of which fd is a descriptor; of no address where it has none."""
        start, end = image.symbols.range_of(LOOP)
        rule = image.unwind.rule((start + end) // 2) if end else None
        if rule is None or rule == image.unwind.first_rule(start):
            return cls(start, end, None)
        return cls(start, end, rule, _moved(image, fd, rule) if end - start < _LEAST_BYTES else (0, 0))

    @property
    def code(self) -> tuple[int, int]:
        """The addresses of the code for instructions."""
        return self.moved if self.moved[1] else (self.start, self.end)

    def has(self, image: Image, address: int) -> bool:
        """Whether an address is in the loop, or in the part of it that a compiler has put elsewhere: `.cold`.

        That part has no exported name, but it begins within the loop's frame, as no function does. Such a part of
        another function may have the same frame: there, no place is ever learned (LearnedPlaces).
        """
        if self.start <= address < self.end or self.moved[0] <= address < self.moved[1]:
            return True
        return self.rule is not None and image.unwind.first_rule(address) == self.rule


def _moved(image: Image, fd: int, rule: Rule) -> tuple[int, int]:
    """The part of a function that a table of ENTRIES addresses leads into, and that begins in a frame of this rule.

    What the frame saves may differ: a register that only a part of a function needs is saved on the way there.
    """
    try:
        elf = ElfFile(fd)
        code = elf.code_ranges()
        for data in elf.pointers():
            led = {image.unwind.extent(address) for address in data[::_STEP].tolist()
                   if any(start <= address < end for start, end in code)}  # fmt: skip
            for start, end in sorted(led):
                first = image.unwind.first_rule(start)
                if first is not None and first[:FLAGS] == rule[:FLAGS] and tables(data, code, (start, end)):
                    return start, end
    except (OSError, ValueError, IndexError):  # a damaged file
        pass
    return 0, 0
