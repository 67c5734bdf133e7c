"""The words in which an interpreter's loop keeps its variables: its registers, and its frame on the stack."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.stacks.unwinder import LOOP_REGISTERS, LoopFrames, Samples

#: words of a frame that are looked at: CPython's loop has 40 to 80
MOST_WORDS = 128


def loop_words(samples: Samples, loops: LoopFrames) -> NDArray[np.uint64]:
    """The words of each frame, u64, shape (m, places); 0 where there is none.

    A place is a register (LOOP_REGISTERS), or so many words before the frame's end, where the caller's stack begins:
    compiled code has a variable at the same place whenever it stands at the same instruction.
    """
    first = samples.registers[loops.row, _STACK_POINTER]
    size = np.minimum(samples.size[loops.row] >> _SHIFT, np.uint64(samples.dump.shape[1]))
    back = np.arange(1, MOST_WORDS + 1, dtype="<u8") << _SHIFT
    address = loops.cfa[:, None] - back
    there = (address >= loops.stack_pointer[:, None]) & (loops.cfa[:, None] > back)
    at = address - first[:, None] >> _SHIFT
    there &= at < size[:, None]
    stack = samples.dump[loops.row[:, None], np.where(there, at, 0).astype(np.intp)]
    return np.concatenate((loops.registers, np.where(there, stack, np.uint64(0))), axis=1)


_SHIFT = np.uint64(3)
_STACK_POINTER = 7
assert LOOP_REGISTERS
