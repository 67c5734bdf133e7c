"""Unwinds the stacks of many samples together: one step of numpy for one frame of all of them.

A sample has the thread's registers and a copy of the top of its stack, as the kernel wrote them at the fault. Every
step looks up the rule of each program counter, computes the canonical frame address, and loads the return address and
the saved frame pointer from the copy. A sample leaves the loop with a reason; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.stacks import general_steps, rules
from wstrace_plugins.stacks.general_steps import Registers, Stepped
from wstrace_plugins.stacks.plain_steps import PlainSteps
from wstrace_plugins.stacks.reached import BY_GUESS, NO_REGISTER, RUNNING, TOO_DEEP, WORD_BITS, Reached

#: frames of one stack: `import pandas` under `-X perf` reaches 481
MOST_FRAMES = 512

#: the columns of `registers` as the kernel gives them (perf_regs.h of x86) by DWARF's numbers; the program counter's
REGISTER_ORDER = (0, 3, 2, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16)
PROGRAM_COUNTER = 8

_IN_WORD = 7


class Samples(NamedTuple):
    """What the kernel wrote: registers u64 (n, 17), dump u64 (n, words), size (n,): the bytes of each dump's copy."""

    registers: NDArray[np.uint64]
    dump: NDArray[np.uint64]
    size: NDArray[np.uint64]


#: (rows of the batch, the addresses behind instructions) -> the frame numbers of these; int64
NumbersOf = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]


class Code(Protocol):
    """Finds what is known of code."""

    #: the rules, one column each, int64, shape (numbers of a rule, m)
    rules: NDArray[np.int64]
    #: for each frame number the column of its rule; -1 = the address is not in executable memory
    rule_of: NDArray[np.int64]

    def numbers_of(self, rows: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
        """The frame numbers of instructions, each in the process and at the time of its sample.

        Args:
            rows: the samples.
            after: the address behind each instruction.
        """

    def likely_numbers(self, rows: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same, where an address may have the number that it has in another sample: proven() tells."""

    def proven(
        self, rows: NDArray[np.int64], after: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which of likely_numbers() are those of numbers_of()."""


class Unwound(NamedTuple):
    """Stacks: frame numbers int32 (n, deepest), innermost first, 0 behind the last; depth (n,); reason (n,).

    guessed, bool (n, deepest): the frame was found by believing the frame pointer.
    """

    frames: NDArray[np.int32]
    depth: NDArray[np.int32]
    reason: NDArray[np.int8]
    guessed: NDArray[np.bool_]


def unwind(samples: Samples, code: Code, most: int = MOST_FRAMES) -> Unwound:
    """The stacks of samples.

    Args:
        samples: registers and dumps.
        code: what is known of the processes' code.
        most: frames of one stack.
    """
    # In which mapping an address was at its sample's time is asked of all frames together, not at each step.
    walk = _Walk(samples, code, code.likely_numbers, np.arange(len(samples.size)), saved=False)
    walk.go(most)
    found, unproven = walk.found()
    # Few functions find their caller by another register than rsp and rbp: the dynamic linker's, by rbx.
    [again] = (unproven | (found.reason == NO_REGISTER)).nonzero()
    if len(again):
        exact = _Walk(samples, code, code.numbers_of, again, saved=True)
        exact.go(most)
        found = _replaced(found, again, exact.found()[0])
    return found


def _replaced(found: Unwound, rows: NDArray[np.int64], better: Unwound) -> Unwound:
    more = max(better.frames.shape[1] - found.frames.shape[1], 0)
    frames: NDArray[np.int32] = np.pad(found.frames, ((0, 0), (0, more)))
    guessed: NDArray[np.bool_] = np.pad(found.guessed, ((0, 0), (0, more)))
    frames[rows], guessed[rows] = 0, False
    width = better.frames.shape[1]
    frames[rows, :width], guessed[rows, :width] = better.frames, better.guessed
    found.depth[rows], found.reason[rows] = better.depth, better.reason
    return Unwound(frames, found.depth, found.reason, guessed)


class _Walk:
    """Samples that are unwound together.

    Args:
        samples: registers and dumps.
        code: what is known of the processes' code.
        numbers_of: one of its ways to find frame numbers.
        rows: those of the samples that are unwound.
        saved: all callee-saved registers are followed, not only rbp.
    """

    def __init__(
        self, samples: Samples, code: Code, numbers_of: NumbersOf, rows: NDArray[np.int64], *, saved: bool
    ) -> None:
        n = len(samples.size)
        self._code, self._numbers_of, self._rows = code, numbers_of, rows
        self._dump = (samples.dump.reshape(-1) if samples.dump.size else np.zeros(1, "<u8")).view("<i8")
        whole, self._base = _innermost(samples)
        # where the samples are whose callee-saved registers are followed, and where the others are
        none = np.zeros(0, np.int64)
        self._followed = whole.take(rows if saved else none)
        self._frames = whole.take(none if saved else rows)
        self._registers = samples.registers
        self._others: Registers = {}  # of those that are followed; of innermost frames all are known
        self._plain = PlainSteps(code.rules)
        self._doubtful = self._any_guess = False
        #: the frames, their numbers, the columns of their rules; how far from the innermost frame they are
        self._steps: list[tuple[Reached, NDArray[np.int64], NDArray[np.int64], int]] = []
        self._reason = np.full(n, TOO_DEEP, np.int8)
        #: whether the last step led to an address that is no code: a caller that is no code is no caller
        self._astray = np.zeros(n, bool)

    def go(self, most: int) -> None:
        """Takes so many steps at most."""
        for level in range(most):
            frames, followed = self._frames, self._followed
            if len(frames.row):
                self._plain_rules(frames, self._met(frames, level), level)
            elif not len(followed.row):
                return
            if len(followed.row):
                self._follow(followed, self._met(followed, level), level)

    def _met(self, frames: Reached, level: int) -> NDArray[np.int64]:
        """The columns of the rules of frames, which are kept with their numbers."""
        numbers = self._numbers_of(frames.row, frames.after)
        column = self._code.rule_of.take(numbers)
        self._steps.append((frames, numbers, column, level))
        return column

    def _follow(self, frames: Reached, column: NDArray[np.int64], level: int) -> None:
        """Goes to the callers with all their registers."""
        if not level:
            self._others = self._all_registers(frames.row)
        stepped = self._any_rule(frames, column, self._others, level, saved=True)
        [go] = (stepped.why == RUNNING).nonzero()
        self._followed = stepped.callers.take(go)
        self._others = {register: (value[go], known[go]) for register, (value, known) in stepped.others.items()}

    def _plain_rules(self, frames: Reached, column: NDArray[np.int64], level: int) -> None:
        """Goes to the callers, by any rule only where it has to be."""
        if self._plain.count != self._code.rules.shape[1]:
            self._plain = PlainSteps(self._code.rules)
        self._frames, left, why = self._plain.step(column, self._dump, frames, doubtful=self._doubtful)
        if not len(left):
            return
        self._reason[frames.row.take(left)] = why
        rest = left[why == RUNNING]
        if len(rest):
            others = {} if level else self._all_registers(frames.row[rest])
            stepped = self._any_rule(frames.take(rest), column.take(rest), others, level, saved=False)
            self._further(stepped.callers.take((stepped.why == RUNNING).nonzero()[0]))

    def _further(self, callers: Reached) -> None:
        """Adds callers to those whose callee-saved registers are not followed."""
        if len(callers.row):
            pairs: Any = zip(self._frames, callers, strict=True)
            self._frames = Reached(*map(np.concatenate, pairs))
            self._doubtful = bool(self._frames.doubt.any())

    def _all_registers(self, row: NDArray[np.int64]) -> Registers:
        known = np.ones(len(row), bool)
        return {number: (self._registers[row, place], known) for number, place in enumerate(REGISTER_ORDER)}

    def _any_rule(
        self, frames: Reached, column: NDArray[np.int64], others: Registers, level: int, *, saved: bool
    ) -> Stepped:
        """A step from frames by any rule; why some have no caller is kept."""
        table = self._code.rules if saved else self._code.rules[: rules.FIRST_SAVED]
        rule = table.take(column, axis=1, mode="clip")
        stepped = general_steps.step(rule, self._dump, self._base.take(frames.row), frames, others, saved=saved)
        outside = column < 0
        why = np.where(outside, general_steps.outside(frames), stepped.why)
        self._astray[frames.row[outside]] = level > 0
        self._reason[frames.row] = np.where(why == RUNNING, TOO_DEEP, why)
        self._any_guess = self._any_guess or bool((stepped.callers.doubt[why == RUNNING] & BY_GUESS).any())
        return stepped._replace(why=why)

    def found(self) -> tuple[Unwound, NDArray[np.bool_]]:
        """What was unwound, and what of it is not proven.

        That is where a frame was not that of the sample's time, or a step was nonsense.
        """
        n, steps = len(self._reason), self._steps
        row = _flat([frames.row for frames, *_ in steps])
        numbers = _flat([numbers for _, numbers, *_ in steps])
        deepest = steps[-1][-1] + 1 if steps else 0
        level = np.repeat(np.array([level for *_, level in steps], np.int64), [len(one) for _, one, *_ in steps])
        wrong = ~self._code.proven(row, _flat([frames.after for frames, *_ in steps]), numbers)
        column, bp = _flat([column for *_, column, _ in steps]), _flat([frames.bp for frames, *_ in steps])
        wrong |= self._plain.of_bp(column) & (bp & _IN_WORD != 0)
        unproven = np.zeros(n, bool)
        unproven[row[wrong]] = True
        depth = (np.bincount(row, minlength=n) - self._astray).astype(np.int32)
        found, guessed = np.zeros((n, deepest), np.int32), np.zeros((n, deepest), bool)
        found[row, level] = numbers
        found[self._astray, depth[self._astray]] = 0
        if self._any_guess:
            guessed[row, level] = np.concatenate([frames.doubt & BY_GUESS for frames, *_ in steps])
            guessed[self._astray, depth[self._astray]] = False
        rows = self._rows
        return Unwound(found[rows], depth[rows], self._reason[rows], guessed[rows]), unproven[rows]


def _flat(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.zeros(0, "<i8")


def _innermost(samples: Samples) -> tuple[Reached, NDArray[np.uint64]]:
    """The frames in which the samples were taken, and the addresses where the dumps begin."""
    n, words = samples.dump.shape
    sp = samples.registers[:, REGISTER_ORDER[rules.RSP]].view("<i8")
    # of a stack pointer such as compiled code never has nothing is loaded
    size = np.where(sp & _IN_WORD, 0, np.minimum(samples.size.view("<i8") >> WORD_BITS, words))
    row = np.arange(n)
    at = row * words - 1
    frames = Reached(
        row=row,
        after=samples.registers[:, PROGRAM_COUNTER].view("<i8") + 1,
        at=at,
        bp=samples.registers[:, REGISTER_ORDER[rules.RBP]].view("<i8").copy(),
        doubt=np.zeros(n, "u1"),
        end=at + 1 + size,
        word=at - (sp >> WORD_BITS),
    )
    return frames, (sp & ~_IN_WORD).view("<u8")
