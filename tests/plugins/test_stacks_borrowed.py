"""Which faults borrow the stack of samples: between two of their place, all of which had the same one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace.schema import FAULT_REGISTERS, HOW_OWN, HOW_OWN_CUT, PAGE_FAULT
from wstrace.testing import batch_of
from wstrace_plugins.stacks import borrowed
from wstrace_plugins.stacks.borrowed import Lender
from wstrace_plugins.stacks.join import Joined, Stacks


class Fault(NamedTuple):
    """A fault, whose place is `sp` where nothing else is said; sampled with `stack`, 0 = not."""

    sp: int
    stack: int = 0
    tid: int = 1
    pc: int = 1
    bp: int = 0
    pid: int = 7
    how: int = HOW_OWN


def lend(lender: Lender, *faults: Fault, registers_of: int = 0) -> dict[int, int]:
    """Row of each fault that borrows -> its stack."""
    times = np.arange(len(faults), dtype="<u8")
    column: dict[str, Any] = {name: np.array([getattr(one, name) for one in faults]) for name in Fault._fields}
    batch = batch_of(
        PAGE_FAULT, time_ns=times, va=times, flags=0 * times, **{k: column[k] for k in ("pid", "tid", "pc")}
    )
    registers = batch_of(FAULT_REGISTERS, time_ns=times + registers_of, bp=column["bp"], sp=column["sp"])
    rows = np.flatnonzero(column["stack"])
    nothing = np.zeros(len(rows), "<u8")
    stacks = Stacks(nothing, nothing, nothing, nothing, column["stack"][rows].astype("<u4"),
                    column["how"][rows].astype("u1"), nothing, nothing)  # fmt: skip
    found = lender.lend(batch, registers, Joined(rows, stacks, np.ones(len(rows), "<u4")))
    return dict(zip(found.rows.tolist(), found.stack.tolist(), strict=True))


def test_a_fault_between_two_samples_of_its_place_has_their_stack() -> None:
    faults = [Fault(64), Fault(64, 5), Fault(64), Fault(32), Fault(64), Fault(64, 5), Fault(64)]
    assert lend(Lender(), *faults) == {2: 5, 4: 5}


def test_a_sample_of_the_batch_before_is_one_before() -> None:
    lender = Lender()
    assert lend(lender, Fault(64, 5), Fault(64)) == {}
    assert lend(lender, Fault(64), Fault(32), Fault(64, 5), Fault(64)) == {0: 5}
    assert lender.borrowed == 1


def test_of_callers_that_share_a_place_none_lends_there_any_more() -> None:
    lender = Lender()
    assert (
        lend(lender, Fault(64, 5), Fault(64), Fault(64, 6), Fault(64), Fault(64, 6), Fault(32, 3), Fault(32, 3)) == {}
    )
    assert lend(lender, Fault(64, 6), Fault(64), Fault(64, 6), Fault(32, 3), Fault(32), Fault(32, 3)) == {4: 3}


@pytest.mark.parametrize("other", [{"sp": 56}, {"bp": 8}, {"pc": 2}, {"tid": 2}, {"pid": 8}])
def test_another_place_lends_nothing(other: dict[str, int]) -> None:
    assert lend(Lender(), Fault(64, 5), Fault(64)._replace(**other), Fault(64, 5)) == {}


def test_without_a_stack_pointer_nothing_is_borrowed() -> None:
    lender = Lender()
    assert lend(lender, Fault(64, 5), Fault(0), Fault(0, 5), Fault(64)) == {}
    assert lend(lender, Fault(0), Fault(0, 5)) == {}
    assert lender.without_registers == 4


def test_a_stack_without_its_outer_frames_is_not_lent() -> None:
    """What was cut from both samples may have differed."""
    cut = Fault(64, 5, how=HOW_OWN_CUT)
    assert lend(Lender(), cut, Fault(64), cut) == {}


def test_registers_of_other_faults_lend_nothing_and_are_counted() -> None:
    lender = Lender()
    assert lend(lender, Fault(64, 5), Fault(64), Fault(64, 5), registers_of=1) == {}
    assert lender.without_registers == 3


def test_places_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(borrowed, "MOST_PLACES", 1)
    lender = Lender()
    lend(lender, Fault(64, 5), Fault(64))
    assert lend(lender, Fault(64), Fault(32, 4), Fault(32), Fault(32, 4), Fault(64, 5)) == {0: 5}


FAULT = st.tuples(st.sampled_from([32, 64]), st.sampled_from([0, 0, 0, 5, 6]), st.integers(1, 2)).map(
    lambda of: Fault(*of)
)


@given(st.lists(st.lists(FAULT, min_size=1, max_size=30), max_size=4))
@settings(deadline=None)
def test_it_is_the_rule_fault_by_fault(batches: list[list[Fault]]) -> None:
    lender, before = Lender(), list[Fault]()
    for batch in batches:
        wanted = {}
        for row, fault in enumerate(batch):
            place = fault._replace(stack=0)
            former = {one.stack for one in before + batch[:row] if one.stack and one._replace(stack=0) == place}
            later = {one.stack for one in batch[row:] if one.stack and one._replace(stack=0) == place}
            if not fault.stack and former and later and len(former | later) == 1:
                (wanted[row],) = former
        assert lend(lender, *batch) == wanted
        before += batch
