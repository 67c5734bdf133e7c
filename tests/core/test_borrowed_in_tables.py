"""Borrowed stacks in tables: counted apart, and in no total, estimate or margin."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stacks_scripted import Fault, Stacks

from wstrace.analysis.stack_views import STACK_VIEWS
from wstrace.analysis.stacks import StackCounts
from wstrace.batch import Dictionary
from wstrace.schema import HOW_BORROWED


def counted(faults: list[Fault]) -> StackCounts:
    counts = StackCounts()
    for batch in Stacks(Dictionary()).batches(faults):
        counts.add(batch)
    return counts


@pytest.mark.parametrize("by", STACK_VIEWS)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.booleans()), min_size=1, max_size=30))
@settings(max_examples=20, deadline=None)
def test_tables_of_native_stacks_are_the_same_with_and_without_them(by, samples):
    """samples: where, how many faults before it of its thread, whether these borrow its stack."""
    plain, lent, borrowed = [], [], 0
    for place, before, borrow in samples:
        stack = [(1, place * 16), (1, 8)]
        without = Fault(None)
        plain += [without] * before
        lent += [Fault(None, stack, native_how=HOW_BORROWED) if borrow else without] * before
        borrowed += before * borrow
        for faults in (plain, lent):
            faults.append(Fault(None, stack, before + 1))
    with_them = counted(lent)
    assert with_them.table(by, native=True) == counted(plain).table(by, native=True)
    assert (with_them.borrowed, with_them.native) == (borrowed, len(samples))
    assert sum(row.total for row in with_them.table(by, native=True)) == len(lent)
