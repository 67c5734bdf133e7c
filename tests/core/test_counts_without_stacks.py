"""Faults that were recorded without stacks count as faults of which none has a stack."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace.analysis.stacks import StackCounts
from wstrace.schema import FAULT_MAJOR, PAGE_FAULT
from wstrace.testing import batch_of


@pytest.mark.parametrize("by", ["line", "stack"])
@given(st.lists(st.lists(st.sampled_from([0, FAULT_MAJOR]), max_size=9), max_size=5))
@settings(max_examples=40, deadline=None)
def test_batches_without_columns_of_stacks_count_as_with_zeros(by, batches):
    short, whole = StackCounts(), StackCounts()
    for flags in batches:
        columns = {"pid": 7, "tid": 7, "pc": 1, "va": np.arange(len(flags)) * 4096, "flags": flags}
        short.add(batch_of(PAGE_FAULT, **columns))
        whole.add(batch_of(PAGE_FAULT, **columns, stack=0, stack_how=0))
    hard = sum(sum(bool(flag) for flag in flags) for flags in batches)
    for counts in (short, whole):
        assert (counts.total, counts.major, counts.python) == (sum(map(len, batches)), hard, 0)
    assert short.table(by) == whole.table(by)
    assert (short.recorded, whole.recorded) == (False, any(batches))
