# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The program that hangs on the fault events all the time: counts, and goes on to the entry once that is there."""

from __future__ import annotations

from wstrace_plugins.page_faults.linux.python_stacks.assembler import FP, R0, R1, R2, R3, R6, Assembler, Code
from wstrace_plugins.page_faults.linux.python_stacks.programs.common import KEY, LOOKUP, TAIL_CALL

#: of the memory that the gates of a CPU share: how often that of each kind ran, and the kind of the fault at hand
RUNS, KIND, GATE_BYTES = 0, 16, 24


def gate(runs: int, entries: int, kind: int) -> Code:
    """The program of the events of a kind (0 minor, 1 major faults).

    Args:
        runs: the descriptor of an array per CPU, with one value of GATE_BYTES.
        entries: that of an array of programs, with one: the same for both kinds, as loading it takes milliseconds.
    """
    a = Assembler()
    a.mov(R6, R1)
    a.store(FP, KEY, 0)
    a.map(R1, runs)
    a.mov(R2, FP, KEY)
    a.call(LOOKUP)
    a.jump_if(R0, "==", 0, "leave")
    a.load(R1, R0, RUNS + 8 * kind)
    a.op("add", R1, 1)
    a.store(R0, RUNS + 8 * kind, R1)
    a.store(R0, KIND, kind)
    a.mov(R1, R6)
    a.map(R2, entries)
    a.mov(R3, 0)
    a.call(TAIL_CALL)
    a.label("leave")  # the sample is written in any case
    a.mov(R0, 1)
    a.exit()
    return a.assemble()
