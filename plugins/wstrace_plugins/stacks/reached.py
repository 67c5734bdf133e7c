"""Where the unwinding of samples has got to, and why it ends: what the ways of taking a step share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: why an unwound stack ends where it ends
REASONS = ("", "end", "cut by the dump", "no mapping", "no rule", "register not known", "not rising", "too deep")
RUNNING, END, CUT, NO_MAPPING, NO_RULE, NO_REGISTER, NOT_RISING, TOO_DEEP = range(8)

#: what is not certain of a frame: its rbp is not known | it was found by believing the frame pointer
WITHOUT_RBP, BY_GUESS = 1, 2

WORD_BITS = 3


class Reached(NamedTuple):
    """One frame of each sample that goes on; columns of shape (n,), int64: what is unsigned is kept modulo 2^64.

    row: of the sample. after: the address behind the instruction: of a caller, the return address. at: the word below
    the stack pointer, by its place in the dumps of all samples, one behind the other. bp: rbp. doubt: WITHOUT_RBP,
    BY_GUESS. end: the place where the sample's own dump ends. word: what, added to the number of a word of memory,
    makes the place of the word below.
    """

    row: NDArray[np.int64]
    after: NDArray[np.int64]
    at: NDArray[np.int64]
    bp: NDArray[np.int64]
    doubt: NDArray[np.uint8]
    end: NDArray[np.int64]
    word: NDArray[np.int64]

    @property
    def address(self) -> NDArray[np.uint64]:
        """Those of the instructions; a caller's is within its call."""
        return (self.after - 1).view("<u8")

    @property
    def sp(self) -> NDArray[np.uint64]:
        """The stack pointers."""
        return (self.at - self.word << WORD_BITS).view("<u8")

    @property
    def top(self) -> NDArray[np.uint64]:
        """The addresses at which the samples' dumps end."""
        return (self.end - 1 - self.word << WORD_BITS).view("<u8")

    def take(self, rows: NDArray[np.int64]) -> Reached:
        """Those of these rows."""
        return Reached(
            self.row.take(rows),
            self.after.take(rows),
            self.at.take(rows),
            self.bp.take(rows),
            self.doubt.take(rows),
            self.end.take(rows),
            self.word.take(rows),
        )
