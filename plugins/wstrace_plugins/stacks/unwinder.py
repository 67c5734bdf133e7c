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

from wstrace.analysis.tally import distinct
from wstrace_plugins.stacks import rules

#: frames of one stack: `import pandas` under `-X perf` reaches 481
MOST_FRAMES = 512

#: the columns of `registers` as the kernel gives them (perf_regs.h of x86) by DWARF's numbers; the program counter's
REGISTER_ORDER = (0, 3, 2, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16)
PROGRAM_COUNTER = 8

_IN_WORD = 7

#: why an unwound stack ends: it goes on | at the outermost frame | what leads on is not known, or not believed | it is
#: in a register that was not followed
REASONS = ("", "end", "cut short", "register not known")
RUNNING, END, CUT, NO_REGISTER = range(4)

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


class Samples(NamedTuple):
    """What the kernel wrote: registers u64 (n, 17), dump u64 (n, words), size (n,): the bytes of each dump's copy."""

    registers: NDArray[np.uint64]
    dump: NDArray[np.uint64]
    size: NDArray[np.uint64]


#: values of registers and whether each is known, by register
Registers = dict[int, tuple[NDArray[np.uint64], NDArray[np.bool_]]]
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
        self._reason = np.full(n, CUT, np.int8)
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
        stepped = _step(rule, self._dump, self._base.take(frames.row), frames, others, saved=saved)
        outside = column < 0
        why = np.where(outside, np.where(frames.after == 0, END, CUT), stepped.why).astype(np.int8)
        self._astray[frames.row[outside]] = level > 0
        self._reason[frames.row] = np.where(why == RUNNING, CUT, why)
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


# -- steps from frames to their callers ---------------------------------------------------------------------------

_WORD = 8
_NO_ROW, _NO_REASON = np.zeros(0, np.int64), np.zeros(0, np.int8)


class Advanced(NamedTuple):
    """What a step led to: the callers; and of the frames without one, the rows and why; RUNNING = it is not known."""

    callers: Reached
    left: NDArray[np.int64]
    why: NDArray[np.int8]


class PlainSteps:
    """Steps to callers by rules with nothing but the usual, as nearly all are: few numbers each.

    A compiled function's frame ends so many bytes above its stack pointer or its frame pointer, its return address is
    the last word in it, and the caller's rbp is in another word or unchanged. For these a step is a third of the calls
    of numpy that any rule needs, which is what a step costs where few samples are unwound at once.

    Args:
        table: the rules, one column each.
    """

    def __init__(self, table: NDArray[np.int64]) -> None:
        rule = table[: rules.FIRST_SAVED]
        self.count = rule.shape[1]
        from_bp, saves = rule[rules.CFA_REGISTER] == rules.RBP, rule[rules.RBP_KIND] == rules.AT_CFA
        plain = (
            (rule[rules.CFA_KIND] == rules.CFA_SUM)
            & (from_bp | (rule[rules.CFA_REGISTER] == rules.RSP))
            & (rule[rules.RETURN_KIND] == rules.AT_CFA)
            & (rule[rules.RETURN_OFFSET] == -_WORD)
            & (saves | (rule[rules.RBP_KIND] == rules.SAME))
            & (rule[rules.CFA_OFFSET] % _WORD == 0)
            & (rule[rules.RBP_OFFSET] % _WORD == 0)
            & (rule[rules.FLAGS] == 0)
        )
        ends = rule[rules.CFA_KIND] == rules.CFA_END
        # The last column is that of no rule. Where a rule is not plain, frames end at their stack pointer, and no step
        # is taken from there.
        self._plain = np.append(plain, False)
        self._why = np.append(np.where(ends, END, RUNNING), RUNNING).astype(np.int8)
        # the words that are to be added to sp or bp; the bits of the way from sp to bp that are to be, too; how many
        # words the frame must have at least to hold the caller's rbp; those from the return address to that; its bits
        self._numbers = np.zeros((5, self.count + 1), "<i8")
        self._numbers[0, :-1] = np.where(plain, rule[rules.CFA_OFFSET] // _WORD, 0)
        self._of_bp = np.append(plain & from_bp, False)
        self._numbers[1] = np.where(self._of_bp, -1, 0)
        saved_at = np.where(plain & saves, rule[rules.RBP_OFFSET] // _WORD, -1)
        self._numbers[2, :-1] = np.maximum(-saved_at - 1, 0)
        self._numbers[3, :-1] = saved_at + 1
        self._numbers[4, :-1] = np.where(plain & saves, -1, 0)

    def of_bp(self, column: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which steps begin at rbp."""
        found: NDArray[np.bool_] = self._of_bp.take(column, mode="wrap")
        return found

    def step(self, column: NDArray[np.int64], dump: NDArray[np.int64], frames: Reached, *, doubtful: bool) -> Advanced:
        """The callers of frames. Of those of_bp() whose rbp is no multiple of 8 they are nonsense.

        Args:
            column: of the rule of each frame; -1 = none.
            dump: the words of all samples, one behind the other.
            frames: where the samples are.
            doubtful: some of them have a doubt.
        """
        words, of_bp, least, place, saves = self._numbers.take(column, axis=1, mode="wrap")
        row, _, at, bp, doubt, end, word = frames
        back_at = at + (((bp >> WORD_BITS) + word - at) & of_bp) + words
        go = (back_at > at + least) & (back_at < end)
        if doubtful:
            go &= doubt == 0
        back = dump.take(back_at, mode="clip")
        caller_bp = bp + ((dump.take(back_at + place, mode="clip") - bp) & saves)
        callers = Reached(row, back, back_at, caller_bp, doubt, end, word)
        if np.count_nonzero(go) == len(go):
            return Advanced(callers, _NO_ROW, _NO_REASON)
        [left] = (~go).nonzero()
        column = column.take(left)
        why = self._why.take(column, mode="wrap")
        beyond = self._plain.take(column, mode="wrap") & (back_at >= end).take(left) & (doubt.take(left) == 0)
        why[beyond] = CUT
        return Advanced(callers.take(go.nonzero()[0]), left, why)


class Stepped(NamedTuple):
    """What a step led to.

    callers: nonsense where there is none. why: of each the reason why there is none, RUNNING = there
    is one. others: the callers' registers besides rsp and rbp.
    """

    callers: Reached
    why: NDArray[np.int8]
    others: Registers


def _step(
    rule: NDArray[np.int64],
    dump: NDArray[np.int64],
    base: NDArray[np.uint64],
    frames: Reached,
    others: Registers,
    *,
    saved: bool,
) -> Stepped:
    """The callers of frames by any rule: for the few that PlainSteps does not take.

    Args:
        rule: of each frame, shape (numbers of a rule, n).
        dump: the words of all samples, one behind the other.
        base: for each frame the address where its sample's dump begins.
        frames: where the samples are.
        others: the frames' registers besides rsp and rbp: all of the innermost frames, fewer further out.
        saved: rules has rules.SAVED, which are followed.
    """
    sp, bp, top = frames.sp, frames.bp.view("<u8"), frames.top
    known = (frames.doubt & WITHOUT_RBP) == 0

    def load(address: NDArray[np.uint64], wanted: NDArray[np.bool_]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        there = wanted & (address - base < top - base) & ((address & np.uint64(_IN_WORD)) == 0)
        at = (address.view("<i8") >> WORD_BITS) + frames.word + 1
        return dump.take(at * there).view("<u8"), there

    kind, kind_bp, flags = rule[rules.RETURN_KIND], rule[rules.RBP_KIND], rule[rules.FLAGS]
    cfa, bad = _frame_address(rule, sp, bp, known, others)
    loaded = rule[rules.CFA_KIND] == rules.CFA_LOADED
    if loaded.any():
        value, there = load(cfa, loaded & ~bad)
        bad |= loaded & ~there
        cfa = np.where(loaded, value, cfa)
    address, stored = _saved_at(kind, rule[rules.RETURN_OFFSET], cfa, sp, bp)
    back, returned = load(address, stored & ~bad)
    address, stored_bp = _saved_at(kind_bp, rule[rules.RBP_OFFSET], cfa, sp, bp)
    caller_bp, loaded_bp = load(address, stored_bp & ~bad)
    registers: Registers = {}
    for place, register in enumerate(rules.SAVED if saved else ()):
        kind_saved = rule[rules.FIRST_SAVED + 2 * place]
        address, stored_here = _saved_at(kind_saved, rule[rules.FIRST_SAVED + 2 * place + 1], cfa, sp, bp)
        value, there = load(address, stored_here & ~bad)
        old, was_known = others[register]
        registers[register] = np.where(stored_here, value, old), there | (was_known & (kind_saved == rules.SAME))
    signal, guess = (flags & rules.SIGNAL) != 0, (flags & rules.GUESS) != 0

    why = np.where(returned, RUNNING, CUT).astype(np.int8)
    why[(bad | ((kind == rules.AT_RBP) & ~known)) & ~returned] = NO_REGISTER
    why[(rule[rules.CFA_KIND] == rules.CFA_UNKNOWN) | (kind == rules.UNKNOWN)] = CUT
    why[returned & (((cfa <= sp) & ~signal) | ((cfa & np.uint64(_IN_WORD)) != 0))] = CUT
    untold = (flags & rules.UNTOLD) != 0
    chained = ~untold | ((frames.doubt & BY_GUESS) != 0)  # Go keeps frame pointers, and tells nothing else
    ended = (returned & (back == 0)) | (guess & chained & known & (bp == 0))
    why[(rule[rules.CFA_KIND] == rules.CFA_END) | ended] = END
    keeps = loaded_bp | (known & (kind_bp == rules.SAME))
    callers = frames._replace(
        after=(back + signal).view("<i8"),
        at=(cfa.view("<i8") >> WORD_BITS) + frames.word,
        bp=np.where(stored_bp, caller_bp, bp).view("<i8"),
        doubt=(~keeps * WITHOUT_RBP | guess * BY_GUESS).astype("u1"),
    )
    return Stepped(callers, why, registers)


def _frame_address(
    rule: NDArray[np.int64],
    sp: NDArray[np.uint64],
    bp: NDArray[np.uint64],
    known: NDArray[np.bool_],
    others: Registers,
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The canonical frame addresses (or where they are stored), and where one is not known."""
    register, kind = rule[rules.CFA_REGISTER], rule[rules.CFA_KIND]
    from_sp = register == rules.RSP
    value = np.where(from_sp, sp, bp)
    usable = from_sp | ((register == rules.RBP) & known)
    if others and not usable.all():
        for number in distinct(register[~usable]).tolist():
            if number in others and number not in (rules.RSP, rules.RBP):
                own = register == number
                value = np.where(own, others[number][0], value)
                usable |= own & others[number][1]
    return value + rule[rules.CFA_OFFSET].view("<u8"), ~usable | (kind >= rules.CFA_END)


def _saved_at(
    kind: NDArray[np.int64],
    offset: NDArray[np.int64],
    cfa: NDArray[np.uint64],
    sp: NDArray[np.uint64],
    bp: NDArray[np.uint64],
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Where a register of the caller is stored, and for which frames it is."""
    at_cfa = kind == rules.AT_CFA
    others = kind > rules.AT_CFA
    if not others.any():
        return cfa + offset.view("<u8"), at_cfa
    at_sp, at_bp = kind == rules.AT_RSP, kind == rules.AT_RBP
    return np.where(at_sp, sp, np.where(at_bp, bp, cfa)) + offset.view("<u8"), at_cfa | at_sp | at_bp
