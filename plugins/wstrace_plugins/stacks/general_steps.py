"""A step from frames to their callers by any rule: for the few frames whose rules PlainSteps does not apply."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace_plugins.stacks import rules
from wstrace_plugins.stacks.reached import (
    BY_GUESS,
    CUT,
    END,
    NO_MAPPING,
    NO_REGISTER,
    NO_RULE,
    NOT_RISING,
    RUNNING,
    WITHOUT_RBP,
    WORD_BITS,
    Reached,
)

_IN_WORD = np.uint64(7)

#: values of registers and whether each is known, by register
Registers = dict[int, tuple[NDArray[np.uint64], NDArray[np.bool_]]]


class Stepped(NamedTuple):
    """What a step led to.

    callers: nonsense where there is none. why: of each the reason why there is none, RUNNING = there
    is one. others: the callers' registers besides rsp and rbp.
    """

    callers: Reached
    why: NDArray[np.int8]
    others: Registers


def step(
    rule: NDArray[np.int64],
    dump: NDArray[np.int64],
    base: NDArray[np.uint64],
    frames: Reached,
    others: Registers,
    *,
    saved: bool,
) -> Stepped:
    """The callers of frames.

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
        there = wanted & (address - base < top - base) & ((address & _IN_WORD) == 0)
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

    why = _reasons(rule, known, returned, bad)
    why[returned & (((cfa <= sp) & ~signal) | ((cfa & _IN_WORD) != 0))] = NOT_RISING
    untold = (flags & rules.UNTOLD) != 0
    chained = ~untold | ((frames.doubt & BY_GUESS) != 0)  # Go keeps frame pointers, and tells nothing else
    ended = (returned & (back == 0)) | (guess & chained & known & (bp == 0))
    why[(rule[rules.CFA_KIND] == rules.CFA_END) | ended] = END
    why[(why == CUT) & untold] = NO_RULE  # not the dump's fault, as far as anyone knows
    keeps = loaded_bp | (known & (kind_bp == rules.SAME))
    callers = frames._replace(
        after=(back + signal).view("<i8"),
        at=(cfa.view("<i8") >> WORD_BITS) + frames.word,
        bp=np.where(stored_bp, caller_bp, bp).view("<i8"),
        doubt=(~keeps * WITHOUT_RBP | guess * BY_GUESS).astype("u1"),
    )
    return Stepped(callers, why, registers)


def outside(frames: Reached) -> NDArray[np.int8]:
    """Why stacks end at callers that are in no executable memory; a return address of 0 says that there is none."""
    why = np.where(frames.doubt & BY_GUESS, NO_RULE, NO_MAPPING)
    return np.where(frames.after == 0, END, why).astype(np.int8)


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


def _reasons(
    rule: NDArray[np.int64], known: NDArray[np.bool_], returned: NDArray[np.bool_], bad: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """Why there is no return address, by the rules alone."""
    kind = rule[rules.RETURN_KIND]
    why = np.full(len(known), RUNNING, np.int8)
    why[~returned] = CUT
    why[(bad | ((kind == rules.AT_RBP) & ~known)) & ~returned] = NO_REGISTER
    why[(rule[rules.CFA_KIND] == rules.CFA_UNKNOWN) | (kind == rules.UNKNOWN)] = NO_RULE
    return why
