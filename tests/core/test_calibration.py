"""Estimates of native stacks agree with the faults of each instruction, and their margins hold the truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from stacks_scripted import Fault, Stacks

from wstrace.analysis.stack_views import StackBy
from wstrace.analysis.stacks import StackCounts, StackRow
from wstrace.analysis.tally import NO_SAMPLE
from wstrace.batch import Dictionary

FILL, READ, MAIN, PARSE, RENDER = (1, 0x10), (1, 0x20), (1, 0x30), (1, 0x40), (1, 0x50)


def counted(faults: Sequence[Fault]) -> StackCounts:
    counts = StackCounts()
    for batch in Stacks(Dictionary()).batches(faults):
        counts.add(batch)
    return counts


def rows(counts: StackCounts, by: StackBy = "function") -> dict[str, StackRow]:
    """The rows of native stacks, by what ends their label: the offset of an instruction."""
    table = counts.table(by, native=True)
    return {row.label.rpartition("+")[2]: row for row in table}


def workers(fills: int, reads: int, *, moved: int = 0) -> list[Fault]:
    """100 workers of 45 faults in one instruction, then 15 in another, of which a few have a sample that comes late."""
    faults = []
    for number in range(100):
        base = number * moved
        fill = [Fault(pc=base + FILL[1])] * 45
        read = [Fault(pc=base + READ[1])] * 15
        if number < fills:
            fill[-1] = Fault(native=[FILL, MAIN], weight=45, pc=base + FILL[1])
        elif number < fills + reads:
            read[-1] = Fault(native=[READ, MAIN], weight=60, pc=base + READ[1])
        faults += fill + read
    return faults


@pytest.mark.parametrize("moved", [0, 1 << 16])
def test_what_short_threads_do_first_counts_in_full(moved: int) -> None:
    """Samples come late in short threads: 40 stand for 60 faults of READ each, and 5 for 45 of FILL.

    A program that is loaded elsewhere in each process has the same instructions.
    """
    found = rows(counted(workers(5, 40, moved=moved)))
    assert {name: (row.total, row.margin, row.samples) for name, row in found.items()} == {
        "0x10": (4500, 0, 5), "0x20": (1500, 0, 40)}  # fmt: skip


def test_faults_of_an_instruction_without_a_sample_are_no_others() -> None:
    found = rows(counted(workers(0, 40)))
    assert {name: row.total for name, row in found.items()} == {"0x20": 1500, NO_SAMPLE: 4500}


def test_the_margin_of_a_caller_holds_what_threads_without_a_sample_may_have_called() -> None:
    """PARSE calls an instruction in a long thread, and RENDER in many short ones, which no sample has."""
    long = [Fault(pc=FILL[1])] * 300
    long[19::20] = [Fault(native=[FILL, PARSE], weight=20, pc=FILL[1])] * 15
    counts = counted(long + [Fault(pc=FILL[1])] * 900)
    (row,) = counts.table("stack", native=True)
    assert row.total == 1200
    assert row.total - row.margin <= 300
    (exact,) = counts.table("function", native=True)
    assert (exact.total, exact.margin) == (1200, 0), "whoever called it, it is this function"


def test_samples_that_come_late_tell_no_more_of_callers_than_their_threads() -> None:
    """40 samples of READ stand for 2,400 faults, more than all 1,500 of it: yet 60 workers, 900 of these, have none."""
    (read,) = [row for row in counted(workers(5, 40)).table("stack", native=True) if "0x20" in row.label]
    assert read.total == 1500
    assert read.margin > 0.5 * 1500


@pytest.mark.parametrize("seed", range(5))
def test_callers_in_long_threads_are_estimated_as_before(seed: int) -> None:
    """One in 20 faults has a sample: 3 of 4 faults of an instruction are PARSE's, half of all another one's."""
    rng = np.random.default_rng(seed)
    faults = []
    for number in range(8000):
        stack = [READ, MAIN] if rng.random() < 0.5 else [FILL, PARSE if rng.random() < 0.75 else RENDER]
        sampled = number % 20 == 19
        faults.append(Fault(native=stack if sampled else None, weight=20 * sampled, pc=stack[0][1]))
    counts = counted(faults)
    total = {pc: sum(fault.pc == pc for fault in faults) for pc in (FILL[1], READ[1])}
    found = rows(counts, "stack")
    assert found["0x30"].total == total[READ[1]]
    assert abs(found["0x40"].total - 0.75 * total[FILL[1]]) <= 1.5 * found["0x40"].margin
    assert found["0x40"].margin < 0.2 * found["0x40"].total
    assert sum(row.total for row in found.values()) == 8000


def test_a_sample_of_a_rare_instruction_stands_for_those_that_have_none() -> None:
    """200 instructions with a fault each, of which one in 20 has a sample: it stands for 20, as its thread says."""
    faults = [Fault(pc=4 * at) for at in range(200)]
    faults[19::20] = [Fault(native=[READ, MAIN], weight=20, pc=4 * at) for at in range(19, 200, 20)]
    (row,) = counted(faults).table("stack", native=True)
    assert (row.total, row.samples) == (200, 10)


def test_where_each_fault_has_a_sample_nothing_is_estimated() -> None:
    faults = [Fault(native=[FILL, PARSE if at % 3 else RENDER], weight=1, pc=FILL[1]) for at in range(30)]
    assert {row.total: row.margin for row in counted(faults).table("stack", native=True)} == {20: 0, 10: 0}


@pytest.mark.parametrize(("unseen", "margin"), [(0, 0), (35, 35), (300, 60)])
def test_the_margin_of_a_function_holds_its_instructions_without_a_sample(unseen: int, margin: int) -> None:
    """All samples met one instruction. Of 300 faults of another one 15 would have had one: no more than 60 had none."""
    faults = [Fault(pc=FILL[1])] * 400
    faults[19::20] = [Fault(native=[FILL, MAIN], weight=20, pc=FILL[1])] * 20
    row = counted([*faults, *[Fault(pc=FILL[1] + 8)] * unseen]).table("function", native=True)[0]
    assert (row.total, row.margin, row.certain) == (400, margin, 400)


def test_a_row_that_is_certain_is_not_left_to_chance() -> None:
    faults = [Fault(pc=FILL[1])] * 40
    faults[39] = Fault(native=[FILL, MAIN], weight=40, pc=FILL[1])
    row = counted([*faults, *[Fault(pc=FILL[1] + 8)] * 60]).table("function", native=True)[0]
    assert (row.total, row.margin, row.by_chance) == (40, 60, False)
