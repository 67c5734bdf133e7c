"""Which instruction of the bytecode a place in an interpreter's loop belongs to, from the file's own table of them.

CPython's loop jumps to the code for the next instruction by a table of 256 addresses in the file's data, one for each
instruction. A place in the loop belongs to the instruction whose code begins last before it. A compiler may have moved
a part of that code elsewhere: there the answer is another instruction, which hardly ever stands before a pointer.

Source: Python/ceval.c and Python/opcode_targets.h (computed gotos).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.os.linux.cpython.elf import ElfFile
from wstrace_plugins.os.linux.cpython.instructions import UNKNOWN, Instructions

ENTRIES = 256
#: entries of the table that are in the loop itself: a compiler puts the code for some of them elsewhere
_LEAST_INSIDE = 128


class Handlers:
    """The code for instructions in a loop.

    Args:
        table: for each number of an instruction where its code begins, shape (ENTRIES,).
        start, end: of the loop.
        instructions: of that version.
    """

    def __init__(self, table: NDArray[np.uint64], start: int, end: int, instructions: Instructions) -> None:
        self.instructions = instructions
        self._start, self._end = np.uint64(start), np.uint64(end)
        self._begins, which = np.unique(table, return_inverse=True)
        least, most = np.full(len(self._begins), 255, "u1"), np.zeros(len(self._begins), "u1")
        np.minimum.at(least, which, instructions.plain)
        np.maximum.at(most, which, instructions.plain)
        #: code for several instructions tells nothing
        self._instruction = np.where(least == most, least, np.uint8(UNKNOWN))

    @classmethod
    def of(cls, elf: ElfFile, version: tuple[int, int], loop: tuple[int, int]) -> Handlers | None:
        """Those of a file whose loop is at [start, end); None where it has not one such table, or is damaged."""
        instructions = Instructions.of(version)
        try:
            found = [table for data in elf.pointers() for table in tables(data, elf.code_ranges(), loop)]
        except (OSError, ValueError):
            return None
        return cls(found[0], *loop, instructions) if instructions is not None and len(found) == 1 else None

    def at(self, addresses: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """The plain instructions to which these link-time addresses belong; UNKNOWN outside of the loop."""
        which = np.searchsorted(self._begins, addresses, side="right") - 1
        inside = (which >= 0) & (addresses >= self._start) & (addresses < self._end)
        return np.where(inside, self._instruction.take(which, mode="clip"), np.uint8(UNKNOWN))


def tables(data: NDArray[np.uint64], code: list[tuple[int, int]], loop: tuple[int, int]) -> list[NDArray[np.uint64]]:
    """The runs of ENTRIES words that all point to code, most of them into the loop."""
    if len(data) < ENTRIES:
        return []
    to_code = np.zeros(len(data), bool)
    for start, end in code:
        to_code |= (data >= start) & (data < end)
    into_loop = (data >= loop[0]) & (data < loop[1])
    all_of_them = _sums(to_code) == ENTRIES
    begins = np.flatnonzero(all_of_them & (_sums(into_loop) >= _LEAST_INSIDE))
    return [data[begin : begin + ENTRIES] for begin in begins[:2].tolist()]


def _sums(which: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many of the ENTRIES from each place on."""
    sums: NDArray[np.int64] = np.append(np.int64(0), np.cumsum(which, dtype=np.int64))
    found: NDArray[np.int64] = sums[ENTRIES:] - sums[:-ENTRIES]
    return found
