"""Unwinds the stacks of many samples together: one step of numpy for one frame of all of them.

A sample has the thread's registers and a copy of the top of its stack, as the kernel wrote them at the fault. Every
step looks up the rule of each program counter, computes the canonical frame address, and loads the return address and
the saved frame pointer from the copy. A sample leaves the loop with a reason; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.stacks import general_steps, rules
from wstrace_plugins.stacks.general_steps import Registers, Stepped
from wstrace_plugins.stacks.plain_steps import PlainSteps
from wstrace_plugins.stacks.reached import BY_GUESS, NO_REGISTER, RUNNING, TOO_DEEP, WITHOUT_RBP, WORD_BITS, Reached

#: frames of one stack: `import pandas` under `-X perf` reaches 481
MOST_FRAMES = 512

#: the columns of `registers` as the kernel gives them (perf_regs.h of x86) by DWARF's numbers; the program counter's
REGISTER_ORDER = (0, 3, 2, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16)
PROGRAM_COUNTER = 8

#: the columns of LoopFrames.registers
LOOP_REGISTERS = (rules.RBP, *rules.SAVED)

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

    def loops(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which frame numbers are of an interpreter's loop."""


class LoopFrames(NamedTuple):
    """The innermost frame of an interpreter's loop in each sample that has one; shape (m,) or (m, registers).

    row: of the sample. code_address: its instruction. stack_pointer: where it begins. cfa: where it ends, 0 = not
    known. registers: RBP and rules.SAVED as they are in this frame; 0 = not known.
    """

    row: NDArray[np.int64]
    code_address: NDArray[np.uint64]
    stack_pointer: NDArray[np.uint64]
    cfa: NDArray[np.uint64]
    registers: NDArray[np.uint64]

    def take(self, rows: NDArray[np.int64]) -> LoopFrames:
        """Those of these rows."""
        return LoopFrames(
            self.row[rows], self.code_address[rows], self.stack_pointer[rows], self.cfa[rows], self.registers[rows]
        )

    @classmethod
    def together(cls, some: Sequence[LoopFrames]) -> LoopFrames:
        """All of them, one behind the other."""
        none = np.zeros(0, "<u8")
        empty = cls(np.zeros(0, np.int64), none, none, none, np.zeros((0, len(LOOP_REGISTERS)), "<u8"))
        return cls(*map(np.concatenate, zip(empty, *some, strict=True)))


class Unwound(NamedTuple):
    """Stacks: frame numbers int32 (n, deepest), innermost first, 0 behind the last; depth (n,); reason (n,).

    guessed, bool (n, deepest): the frame was found by believing the frame pointer. loops: where they were asked for.
    """

    frames: NDArray[np.int32]
    depth: NDArray[np.int32]
    reason: NDArray[np.int8]
    guessed: NDArray[np.bool_]
    loops: LoopFrames | None = None


def unwind(samples: Samples, code: Code, most: int = MOST_FRAMES, *, loops: bool = False) -> Unwound:
    """The stacks of samples.

    Args:
        samples: registers and dumps.
        code: what is known of the processes' code.
        most: frames of one stack.
        loops: give the innermost frames of interpreters' loops, too. Until they are met, a step is a general one.
    """
    # In which mapping an address was at its sample's time is asked of all frames together, not at each step.
    walk = _Walk(samples, code, code.likely_numbers, np.arange(len(samples.size)), saved=False, loops=loops)
    walk.go(most)
    found, unproven = walk.found()
    # Few functions find their caller by another register than rsp and rbp: the dynamic linker's, by rbx.
    [again] = (unproven | (found.reason == NO_REGISTER)).nonzero()
    if len(again):
        exact = _Walk(samples, code, code.numbers_of, again, saved=True, loops=loops)
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
    loops = found.loops
    if loops is not None and better.loops is not None:
        kept = loops.take(np.flatnonzero(~np.isin(loops.row, rows)))
        loops = LoopFrames.together([kept, better.loops])
    return Unwound(frames, found.depth, found.reason, guessed, loops)


class _Walk:
    """Samples that are unwound together.

    Args:
        samples: registers and dumps.
        code: what is known of the processes' code.
        numbers_of: one of its ways to find frame numbers.
        rows: those of the samples that are unwound.
        saved: all callee-saved registers are followed, not only rbp.
        loops: the frames of interpreters' loops are kept; until its own is met, those of a sample are followed, too.
    """

    def __init__(
        self, samples: Samples, code: Code, numbers_of: NumbersOf, rows: NDArray[np.int64], *, saved: bool, loops: bool
    ) -> None:
        n = len(samples.size)
        self._code, self._numbers_of, self._rows, self._saved = code, numbers_of, rows, saved
        self._dump = (samples.dump.reshape(-1) if samples.dump.size else np.zeros(1, "<u8")).view("<i8")
        whole, self._base = _innermost(samples)
        # where the samples are whose callee-saved registers are followed, and where the others are
        none = np.zeros(0, np.int64)
        self._followed = whole.take(rows if saved or loops else none)
        self._frames = whole.take(none if saved or loops else rows)
        self._registers = samples.registers
        self._others: Registers = {}  # of those that are followed; of innermost frames all are known
        self._plain = PlainSteps(code.rules)
        self._doubtful = self._any_guess = False
        #: the frames, their numbers, the columns of their rules; how far from the innermost frame they are
        self._steps: list[tuple[Reached, NDArray[np.int64], NDArray[np.int64], int]] = []
        self._reason = np.full(n, TOO_DEEP, np.int8)
        #: whether the last step led to an address that is no code: a caller that is no code is no caller
        self._astray = np.zeros(n, bool)
        self._in_loop = np.zeros(n, bool) if loops else None
        self._loops: list[LoopFrames] = []

    def go(self, most: int) -> None:
        """Takes so many steps at most."""
        for level in range(most):
            frames, followed = self._frames, self._followed
            if len(frames.row):
                self._plain_rules(frames, *self._met(frames, level), level)
            elif not len(followed.row):
                return
            if len(followed.row):
                self._follow(followed, *self._met(followed, level), level)

    def _met(self, frames: Reached, level: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The numbers of frames, and the columns of their rules."""
        numbers = self._numbers_of(frames.row, frames.after)
        column = self._code.rule_of.take(numbers)
        self._steps.append((frames, numbers, column, level))
        return numbers, column

    def _follow(self, frames: Reached, numbers: NDArray[np.int64], column: NDArray[np.int64], level: int) -> None:
        """Goes to the callers with all their registers, until they are in the interpreter's loop."""
        if not level:
            self._others = self._all_registers(frames.row)
        stepped = self._any_rule(frames, column, self._others, level, saved=True)
        if self._in_loop is not None:
            self._keep_loops(self._in_loop, frames, numbers, stepped)
        [go] = (stepped.why == RUNNING).nonzero()
        done = np.zeros(len(go), bool) if self._saved or self._in_loop is None else self._in_loop[frames.row[go]]
        self._further(stepped.callers.take(go[done]))
        go = go[~done]
        self._followed = stepped.callers.take(go)
        self._others = {register: (value[go], known[go]) for register, (value, known) in stepped.others.items()}

    def _plain_rules(self, frames: Reached, numbers: NDArray[np.int64], column: NDArray[np.int64], level: int) -> None:
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

    def _keep_loops(
        self, in_loop: NDArray[np.bool_], frames: Reached, numbers: NDArray[np.int64], stepped: Stepped
    ) -> None:
        first = np.flatnonzero(self._code.loops(numbers) & ~in_loop[frames.row])
        row = frames.row[first]
        in_loop[row] = True
        known = {**self._others, rules.RBP: (frames.bp.view("<u8"), (frames.doubt & WITHOUT_RBP) == 0)}
        registers = [np.where(there[first], value[first], np.uint64(0))
                     for value, there in (known[number] for number in LOOP_REGISTERS)]  # fmt: skip
        self._loops.append(
            LoopFrames(row, frames.address[first], frames.sp[first], stepped.cfa[first], np.stack(registers, axis=1))
        )

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
        loops = None if self._in_loop is None else LoopFrames.together(self._loops)
        rows = self._rows
        return Unwound(found[rows], depth[rows], self._reason[rows], guessed[rows], loops), unproven[rows]


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
