"""Unwinds the stacks of many samples together: one step of numpy for one frame of all of them.

A sample has the thread's registers and a copy of the top of its stack, as the kernel wrote them at the fault. Every
step looks up the rule of each program counter, computes the canonical frame address, and loads the return address and
the saved registers from the copy. A sample leaves the loop with a reason; the others go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.stacks import rules

if TYPE_CHECKING:
    from wstrace_plugins.stacks.linux.known_code import KnownCode

#: frames of one stack: `import pandas` under `-X perf` reaches 481
MOST_FRAMES = 512

#: the columns of `registers` as the kernel gives them (perf_regs.h of x86) by DWARF's numbers; the program counter's
REGISTER_ORDER = (0, 3, 2, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16)
PROGRAM_COUNTER = 8

#: a stack goes on | ends at the outermost frame | what leads on is not known, or not believed
RUNNING, END, CUT = range(3)

_WORD, _IN_WORD, _WORD_BITS = 8, np.uint64(7), np.uint64(3)
#: the rows of registers by DWARF's numbers: rbp and those of rules.SAVED, rsp, and all others, which only innermost
#: frames have
_ORDER = (rules.RBP, *rules.SAVED, rules.RSP, 0, 1, 2, 4, 5, 8, 9, 10, 11)
_ROWS = np.argsort(np.array(_ORDER))
_RBP, _RSP = 0, 6
#: the rows of a rule that say how the return address, rbp and the others are restored; the row behind each: its offset
_KINDS = np.array((rules.RETURN_KIND, rules.RBP_KIND, *(rules.FIRST_SAVED + 2 * n for n in range(len(rules.SAVED)))))


class Samples(NamedTuple):
    """What the kernel wrote: registers u64 (n, 17), dump u64 (n, words), size (n,): the bytes of each dump's copy."""

    registers: NDArray[np.uint64]
    dump: NDArray[np.uint64]
    size: NDArray[np.uint64]


class Unwound(NamedTuple):
    """Stacks: frame numbers int32 (n, deepest), innermost first, 0 behind the last; depth (n,).

    whole, bool (n,): the last one is the outermost; of others what leads on is not known, or not believed.
    guessed, bool (n, deepest): the frame was found by believing the frame pointer.
    """

    frames: NDArray[np.int32]
    depth: NDArray[np.int32]
    whole: NDArray[np.bool_]
    guessed: NDArray[np.bool_]


class _Frames(NamedTuple):
    """One frame of each sample that goes on.

    row: of the sample, (n,). after: the address behind the instruction, of a caller the return address, u64 (n,).
    values, known: the registers by _ROWS, u64 (16 or 7, n), and which of them are known. guessed, (n,): it was found by
    believing the frame pointer.
    """

    row: NDArray[np.int64]
    after: NDArray[np.uint64]
    values: NDArray[np.uint64]
    known: NDArray[np.bool_]
    guessed: NDArray[np.bool_]


def unwind(samples: Samples, code: KnownCode, most: int = MOST_FRAMES) -> Unwound:
    """The stacks of samples.

    samples: registers and dumps. code: what is known of the processes' code. most: frames of one stack.
    """
    n = len(samples.size)
    whole, depth = np.zeros(n, bool), np.zeros(n, np.int32)
    values = samples.registers[:, [REGISTER_ORDER[number] for number in _ORDER]].T.copy()
    after = samples.registers[:, PROGRAM_COUNTER] + np.uint64(1)
    frames = _Frames(np.arange(n), after, values, np.ones(values.shape, bool), np.zeros(n, bool))
    memory = _Dumps(samples, values[_RSP])
    levels: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]] = []
    while len(frames.row) and len(levels) < most:
        numbers = code.numbers_of(frames.row, frames.after.view("<i8"))
        column = code.rule_of.take(numbers)
        if levels:  # a caller that is no code is no caller
            frames, numbers, column = _taken(frames, column >= 0), numbers[column >= 0], column[column >= 0]
        levels.append((frames.row, numbers, frames.guessed))
        depth[frames.row] += 1
        callers, why = _step(code.rules.take(column, axis=1, mode="clip"), memory, frames)
        why[column < 0] = CUT
        whole[frames.row] = why == END
        frames = _taken(callers, why == RUNNING)
    found, guessed = np.zeros((n, len(levels)), np.int32), np.zeros((n, len(levels)), bool)
    for level, (row, numbers, guess) in enumerate(levels):
        found[row, level], guessed[row, level] = numbers, guess
    deepest = int(depth.max(initial=0))
    return Unwound(found[:, :deepest], depth, whole, guessed[:, :deepest])


def _taken(frames: _Frames, wanted: NDArray[np.bool_]) -> _Frames:
    if wanted.all():
        return frames
    row, after, values, known, guessed = frames
    return _Frames(row[wanted], after[wanted], values[:, wanted], known[:, wanted], guessed[wanted])


class _Dumps:
    """The copies of the samples' stacks, one behind the other.

    samples: registers and dumps. start: the addresses at which the dumps begin, (n,).
    """

    def __init__(self, samples: Samples, start: NDArray[np.uint64]) -> None:
        n, words = samples.dump.shape
        self._words = samples.dump.reshape(-1) if samples.dump.size else np.zeros(1, "<u8")
        self._start, self._first = start, np.arange(n) * words
        # of a stack pointer such as compiled code never has nothing is loaded
        whole = np.minimum(samples.size & ~_IN_WORD, np.uint64(words * _WORD))
        self._size = np.where(start & _IN_WORD, np.uint64(0), whole)

    def load(
        self, row: NDArray[np.int64], address: NDArray[np.uint64], wanted: NDArray[np.bool_]
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """The words at addresses (..., n) in the samples' dumps, and which of the wanted ones are there."""
        inside = address - self._start.take(row)
        there = wanted & (inside < self._size.take(row)) & ((inside & _IN_WORD) == 0)
        at = (inside >> _WORD_BITS).view("<i8") + self._first.take(row)
        return self._words.take(at * there), there


def _step(rule: NDArray[np.int64], memory: _Dumps, frames: _Frames) -> tuple[_Frames, NDArray[np.int8]]:
    """The callers of frames, nonsense where there is none; and why there is none, RUNNING = there is one.

    rule: of each frame, shape (numbers of a rule, n). memory: the dumps. frames: where the samples are.
    """
    row, _, values, known, guessed = frames
    kind, register, flags = rule[rules.CFA_KIND], rule[rules.CFA_REGISTER], rule[rules.FLAGS]
    signal, guess = (flags & rules.SIGNAL) != 0, (flags & rules.GUESS) != 0
    sp, bp, bp_known = values[_RSP], values[_RBP], known[_RBP]
    place, each = _ROWS.take(register, mode="clip"), np.arange(len(row))
    usable = (place < len(values)) & (register < len(_ROWS)) & (kind < rules.CFA_END)
    place = np.where(usable, place, _RSP)
    cfa = values[place, each] + rule[rules.CFA_OFFSET].view("<u8")
    usable &= known[place, each]
    if len(loaded := np.flatnonzero(kind == rules.CFA_LOADED)):
        cfa[loaded], usable[loaded] = memory.load(row[loaded], cfa[loaded], usable[loaded])

    kinds, offsets = rule.take(_KINDS, axis=0), rule.take(_KINDS + 1, axis=0).view("<u8")
    at_cfa, at_sp, at_bp = kinds == rules.AT_CFA, kinds == rules.AT_RSP, kinds == rules.AT_RBP
    base = np.where(at_sp, sp, np.where(at_bp, bp, cfa)) if (at_sp | at_bp).any() else cfa
    found, there = memory.load(row, base + offsets, usable & (at_cfa | at_sp | (at_bp & bp_known)))
    back, returned = found[0], there[0]

    why = np.where(returned, RUNNING, CUT).astype(np.int8)
    why[(kind == rules.CFA_UNKNOWN) | (kinds[0] == rules.UNKNOWN)] = CUT
    why[returned & (((cfa <= sp) & ~signal) | ((cfa & _IN_WORD) != 0))] = CUT
    believed = guess & (guessed | ((flags & rules.UNDESCRIBED) == 0))  # Go keeps frame pointers, and says nothing else
    why[(kind == rules.CFA_END) | (returned & (back == 0)) | (believed & bp_known & (bp == 0))] = END

    callers, still = np.empty((_RSP + 1, len(row)), "<u8"), np.ones((_RSP + 1, len(row)), bool)
    callers[:_RSP], still[:_RSP] = (
        np.where(there[1:], found[1:], values[:_RSP]),
        there[1:] | (known[:_RSP] & (kinds[1:] == rules.SAME)),
    )
    callers[_RSP] = cfa
    return _Frames(row, back + signal, callers, still, guess), why
