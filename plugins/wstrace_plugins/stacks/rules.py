"""Unwind rules: how a caller's program counter and registers follow from a frame's own, one fixed row of numbers each.

A rule is an answer of `.eh_frame` for one program counter, made flat, so that numpy applies thousands at once.
Registers have DWARF's numbers. CFA is the canonical frame address: the stack pointer before the call.

Source: DWARF 5, 6.4 Call Frame Information; System V ABI, AMD64 supplement, figure 3.36 (register numbers).
"""

from __future__ import annotations

#: a rule: one int for each column below
Rule = tuple[int, ...]

# -- columns -------------------------------------------------------------------------------------------------------

CFA_KIND, CFA_REGISTER, CFA_OFFSET, RETURN_KIND, RETURN_OFFSET, RBP_KIND, RBP_OFFSET, FLAGS = range(8)
#: for each of SAVED, its kind and its offset
FIRST_SAVED = 8

RBX, RBP, RSP = 3, 6, 7
#: the callee-saved registers besides rbp
SAVED = (RBX, 12, 13, 14, 15)

# -- kinds of a CFA ------------------------------------------------------------------------------------------------

#: register + offset | the u64 at register + offset | the outermost frame | not known
CFA_SUM, CFA_LOADED, CFA_END, CFA_UNKNOWN = range(4)

# -- kinds of a register or a return address -----------------------------------------------------------------------

#: unchanged | at CFA + offset | at this frame's rsp + offset | at its rbp + offset | lost | not known
SAME, AT_CFA, AT_RSP, AT_RBP, LOST, UNKNOWN = range(6)

# -- flags ---------------------------------------------------------------------------------------------------------

#: a signal handler returns to this frame's code, which then was interrupted, not called
SIGNAL = 1
#: no unwinding information: the frame pointer is believed
GUESS = 2
#: of a file, which could have a rule: code that is compiled without frame pointers has anything in rbp
UNDESCRIBED = 4

_NOTHING_SAVED = (UNKNOWN, 0) * len(SAVED)

END: Rule = (CFA_END, 0, 0, LOST, 0, LOST, 0, 0, *_NOTHING_SAVED)
NO_RULE: Rule = (CFA_UNKNOWN, 0, 0, UNKNOWN, 0, UNKNOWN, 0, 0, *_NOTHING_SAVED)
#: push %rbp; mov %rsp, %rbp: what code compiled with frame pointers has done after its first two instructions
FRAME_POINTER: Rule = (CFA_SUM, RBP, 16, AT_CFA, -8, AT_CFA, -16, GUESS, *_NOTHING_SAVED)
#: The same of code in a file without unwinding information.
UNDESCRIBED_FRAME_POINTER: Rule = (*FRAME_POINTER[:FLAGS], GUESS | UNDESCRIBED, *_NOTHING_SAVED)
#: CPython's perf trampoline: sub $8, %rsp; call; add $8, %rsp; ret. It touches no other register.
#: Source: Python/asm_trampoline.S of CPython 3.12
PYTHON_TRAMPOLINE: Rule = (CFA_SUM, RSP, 16, AT_CFA, -8, SAME, 0, 0, *((SAME, 0) * len(SAVED)))
