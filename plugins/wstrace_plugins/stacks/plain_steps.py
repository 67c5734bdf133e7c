"""A step from frames to their callers where nothing but the usual has to be done: for nearly all frames.

A compiled function's frame ends so many bytes above its stack pointer or its frame pointer, its return address is the
last word in it, and the caller's rbp is in another word or unchanged. For these few numbers a step is a third of the
calls of numpy that any rule needs (general_steps), which is what a step costs where few samples are unwound at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace_plugins.stacks import rules
from wstrace_plugins.stacks.reached import CUT, END, RUNNING, WORD_BITS, Reached

_WORD = 8
_NO_ROW, _NO_REASON = np.zeros(0, np.int64), np.zeros(0, np.int8)


class Advanced(NamedTuple):
    """What a step led to: the callers; and of the frames without one, the rows and why; RUNNING = it is not known."""

    callers: Reached
    left: NDArray[np.int64]
    why: NDArray[np.int8]


class PlainSteps:
    """Rules as few numbers each.

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
