"""Unwinds the stacks of many samples together: one step of numpy for one frame of all of them.

A sample has the thread's registers and a copy of the top of its stack, as the kernel wrote them at the fault. Every
step looks up the rule of each program counter, computes the canonical frame address, and loads the return address and
the saved frame pointer from the copy. A sample leaves the loop with a reason; the others go on.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wstrace_stacks import rules

#: frames of one stack: `import pandas` under `-X perf` reaches 481
MOST_FRAMES = 512

#: the columns of `registers` as the kernel gives them (perf_regs.h of x86) by DWARF's numbers; the program counter's
REGISTER_ORDER = (0, 3, 2, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16)
PROGRAM_COUNTER = 8

#: the columns of LoopFrames.registers
LOOP_REGISTERS = (rules.RBP, *rules.SAVED)

#: why an unwound stack ends where it ends
REASONS = ("", "end", "cut by the dump", "no mapping", "no rule", "register not known", "not rising", "too deep")
END, CUT, NO_MAPPING, NO_RULE, NO_REGISTER, NOT_RISING, TOO_DEEP = range(1, 8)
_RUNNING = 0

_WORD_SHIFT, _IN_WORD = np.uint64(3), np.uint64(7)


class Samples(NamedTuple):
    """What the kernel wrote: registers u64 (n, 17), dump u64 (n, words), size (n,): the bytes of each dump's copy."""

    registers: NDArray[np.uint64]
    dump: NDArray[np.uint64]
    size: NDArray[np.uint64]


class Code(Protocol):
    """Finds what is known of code."""

    #: the rules, one column each, int64, shape (numbers of a rule, m)
    rules: NDArray[np.int64]
    #: for each frame number the column of its rule; -1 = the address is not in executable memory
    rule_of: NDArray[np.int32]

    def numbers_of(self, rows: NDArray[np.intp], addresses: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The frame numbers of code addresses, each in the process and at the time of its sample (rows)."""

    def loops(self, numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which frame numbers are of an interpreter's loop."""


class LoopFrames(NamedTuple):
    """The innermost frame of an interpreter's loop in each sample that has one; shape (m,) or (m, registers).

    row: of the sample. code_address: its instruction. stack_pointer: where it begins. cfa: where it ends, 0 = not
    known. registers: RBP and rules.SAVED as they are in this frame; 0 = not known.
    """

    row: NDArray[np.intp]
    code_address: NDArray[np.uint64]
    stack_pointer: NDArray[np.uint64]
    cfa: NDArray[np.uint64]
    registers: NDArray[np.uint64]

    def take(self, rows: NDArray[np.intp]) -> LoopFrames:
        """Those of these rows."""
        return LoopFrames(
            self.row[rows], self.code_address[rows], self.stack_pointer[rows], self.cfa[rows], self.registers[rows]
        )


class Unwound(NamedTuple):
    """Stacks: frame numbers int32 (n, deepest), innermost first, 0 behind the last; depth (n,); reason (n,).

    guessed, bool (n, deepest): the frame was found by believing the frame pointer. loops: where they were asked for.
    """

    frames: NDArray[np.int32]
    depth: NDArray[np.int32]
    reason: NDArray[np.int8]
    guessed: NDArray[np.bool_]
    loops: LoopFrames | None = None


#: values of registers and whether each is known, by register
_Registers = dict[int, tuple[NDArray[np.uint64], NDArray[np.bool_]]]


def unwind(samples: Samples, code: Code, most: int = MOST_FRAMES, *, loops: bool = False) -> Unwound:
    """The stacks of samples.

    Args:
        samples: registers and dumps.
        code: what is known of the processes' code.
        most: frames of one stack.
        loops: give the innermost frames of interpreters' loops, too. It takes twice the time.
    """
    if loops:
        inner: list[LoopFrames] = []
        whole = _unwind(samples, code, most, saved=True, loops=inner)
        return whole._replace(loops=LoopFrames(*map(np.concatenate, zip(*inner, strict=True))))
    found = _unwind(samples, code, most, saved=False)
    # few functions find their caller by another register than rsp and rbp: the dynamic linker's, by rbx
    rows = np.flatnonzero(found.reason == NO_REGISTER)
    if not len(rows):
        return found
    return _replaced(found, rows, _unwind(Samples(*(column[rows] for column in samples)), code, most, saved=True))


def _replaced(found: Unwound, rows: NDArray[np.intp], better: Unwound) -> Unwound:
    more = max(better.frames.shape[1] - found.frames.shape[1], 0)
    frames: NDArray[np.int32] = np.pad(found.frames, ((0, 0), (0, more)))
    guessed: NDArray[np.bool_] = np.pad(found.guessed, ((0, 0), (0, more)))
    frames[rows], guessed[rows] = 0, False
    width = better.frames.shape[1]
    frames[rows, :width], guessed[rows, :width] = better.frames, better.guessed
    found.depth[rows], found.reason[rows] = better.depth, better.reason
    return Unwound(frames, found.depth, found.reason, guessed)


def _unwind(samples: Samples, code: Code, most: int, *, saved: bool, loops: list[LoopFrames] | None = None) -> Unwound:
    """saved: all callee-saved registers are followed, not only rbp. loops: to which LoopFrames are appended."""
    n, words = samples.dump.shape
    flat = np.append(samples.dump.reshape(-1), np.uint64(0)) if not samples.dump.size else samples.dump.reshape(-1)
    depth, reason = np.zeros(n, np.int32), np.full(n, TOO_DEEP, np.int8)
    steps: list[tuple[NDArray[np.intp], NDArray[np.int32], NDArray[np.bool_]]] = []
    alive = np.arange(n)
    code_address = np.ascontiguousarray(samples.registers[:, PROGRAM_COUNTER])
    sp = samples.registers[:, REGISTER_ORDER[rules.RSP]].copy()
    bp = samples.registers[:, REGISTER_ORDER[rules.RBP]].copy()
    base, limit = sp, np.minimum(samples.size >> _WORD_SHIFT, np.uint64(words))
    known, guessed, in_loop = np.ones(n, bool), np.zeros(n, bool), np.zeros(n, bool)
    others: _Registers = {number: (samples.registers[:, column], known) for number, column in enumerate(REGISTER_ORDER)}
    for step in range(most):
        numbers = code.numbers_of(alive, code_address)
        row = code.rule_of.take(numbers)
        outside = row < 0
        # a caller that is no code is no caller: the stack ends before it
        real = ~outside if step and outside.any() else slice(None)
        steps.append((alive[real], numbers[real], guessed[real]))
        depth[alive[real]] += 1
        rule = (code.rules if saved else code.rules[: rules.FIRST_SAVED]).take(row, axis=1, mode="clip")
        kind, kind_bp, flags = rule[rules.RETURN_KIND], rule[rules.RBP_KIND], rule[rules.FLAGS]
        cfa, bad = _frame_address(rule, sp, bp, known, others)

        def load(
            address: NDArray[np.uint64],
            wanted: NDArray[np.bool_],
            first: NDArray[np.int64] = alive * words,
            base: NDArray[np.uint64] = base,
            limit: NDArray[np.uint64] = limit,
        ) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
            at = (address - base) >> _WORD_SHIFT
            there = wanted & (at < limit) & ((address & _IN_WORD) == 0)
            return flat.take((first + at.view("<i8")) * there), there

        loaded = rule[rules.CFA_KIND] == rules.CFA_LOADED
        if loaded.any():
            value, there = load(cfa, loaded & ~bad)
            bad |= loaded & ~there
            cfa = np.where(loaded, value, cfa)
        if loops is not None:
            first = code.loops(numbers) & ~in_loop[alive]
            in_loop[alive[first]] = True
            end = np.where(bad, np.uint64(0), cfa)
            registers = _kept(first, {**others, rules.RBP: (bp, known)})
            loops.append(LoopFrames(alive[first], code_address[first], sp[first], end[first], registers))
        address, stored = _saved_at(kind, rule[rules.RETURN_OFFSET], cfa, sp, bp)
        back, returned = load(address, stored & ~bad)
        address, stored_bp = _saved_at(kind_bp, rule[rules.RBP_OFFSET], cfa, sp, bp)
        caller_bp, loaded_bp = load(address, stored_bp & ~bad)
        callers: _Registers = {}
        for place, register in enumerate(rules.SAVED if saved else ()):
            kind_saved = rule[rules.FIRST_SAVED + 2 * place]
            address, stored_here = _saved_at(kind_saved, rule[rules.FIRST_SAVED + 2 * place + 1], cfa, sp, bp)
            value, there = load(address, stored_here & ~bad)
            old, was_known = others[register]
            same = was_known & (kind_saved == rules.SAME)
            callers[register] = np.where(stored_here, value, old), there | same
        signal, guess = (flags & rules.SIGNAL) != 0, (flags & rules.GUESS) != 0

        go = returned & (cfa > sp) & (back != 0) & ~signal & ~guess & ~outside
        if not go.all():
            why = _reasons(rule, known, returned, bad)
            why[returned & (cfa <= sp) & ~signal] = NOT_RISING
            why[(rule[rules.CFA_KIND] == rules.CFA_END) | (returned & (back == 0)) | (guess & known & (bp == 0))] = END
            why[outside] = np.where(guessed[outside], NO_RULE, NO_MAPPING)
            go = why == _RUNNING
            reason[alive[~go]] = why[~go]
            if not go.any():
                break
        bp = np.where(stored_bp, caller_bp, bp)[go]
        known = (loaded_bp | (known & (kind_bp == rules.SAME)))[go]
        code_address = (back - ~signal)[go]
        others = {register: (value[go], there[go]) for register, (value, there) in callers.items()}
        sp, base, limit, alive, guessed = cfa[go], base[go], limit[go], alive[go], guess[go]
    return _stacked(n, steps, depth, reason)


def _kept(which: NDArray[np.bool_], registers: _Registers) -> NDArray[np.uint64]:
    """The columns of LoopFrames.registers."""
    values = np.zeros((int(which.sum()), len(LOOP_REGISTERS)), "<u8")
    for column, number in enumerate(LOOP_REGISTERS):
        value, known = registers[number]
        values[:, column] = np.where(known[which], value[which], np.uint64(0))
    return values


def _frame_address(
    rule: NDArray[np.int64],
    sp: NDArray[np.uint64],
    bp: NDArray[np.uint64],
    known: NDArray[np.bool_],
    others: _Registers,
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The canonical frame addresses (or where they are stored), and where one is not known.

    others: the registers besides rsp and rbp: all of the innermost frames, fewer further out.
    """
    register, kind = rule[rules.CFA_REGISTER], rule[rules.CFA_KIND]
    from_sp = register == rules.RSP
    value = np.where(from_sp, sp, bp)
    usable = from_sp | ((register == rules.RBP) & known)
    if others and not usable.all():
        for number in np.unique(register[~usable]).tolist():
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


def _reasons(
    rule: NDArray[np.int64], known: NDArray[np.bool_], returned: NDArray[np.bool_], bad: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """Why there is no return address, by the rules alone."""
    kind = rule[rules.RETURN_KIND]
    why = np.zeros(len(known), np.int8)
    why[~returned] = CUT
    why[(bad | ((kind == rules.AT_RBP) & ~known)) & ~returned] = NO_REGISTER
    why[(rule[rules.CFA_KIND] == rules.CFA_UNKNOWN) | (kind == rules.UNKNOWN)] = NO_RULE
    return why


def _stacked(
    n: int,
    steps: list[tuple[NDArray[np.intp], NDArray[np.int32], NDArray[np.bool_]]],
    depth: NDArray[np.int32],
    reason: NDArray[np.int8],
) -> Unwound:
    frames = np.zeros((n, len(steps)), np.int32)
    guessed = np.zeros((n, len(steps)), bool)
    for number, (rows, found, by_guess) in enumerate(steps):
        frames[rows, number], guessed[rows, number] = found, by_guess
    return Unwound(frames, depth, reason, guessed)
