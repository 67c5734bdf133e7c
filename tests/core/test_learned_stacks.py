"""Tables of Python lines that were learned from samples."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from stacks_scripted import Fault, Stacks

from wstrace.analysis.stack_views import STACK_VIEWS
from wstrace.analysis.stacks import StackCounts
from wstrace.batch import Dictionary
from wstrace.schema import HOW_LEARNED, HOW_NOT_PROVEN, HOW_NOT_SAMPLED

SOME = st.sampled_from([("parse", "/app/leak.py", 12), ("loads", "/usr/lib/python3.11/json/__init__.py", 346)])


@given(st.lists(st.tuples(st.one_of(st.none(), SOME), st.integers(0, 4)), min_size=1, max_size=40))
@settings(max_examples=40, deadline=None)
def test_learned_lines_stand_for_their_samples_faults(rows):
    """rows: the line, None = none was had; the faults of the thread since the sample before."""
    faults = []
    for line, before in rows:
        faults += [Fault(None, how=HOW_NOT_SAMPLED)] * before
        faults.append(Fault(line and [line], [(0, 1)], before + 1, HOW_LEARNED if line else HOW_NOT_PROVEN))
    faults += [Fault(None, how=HOW_NOT_SAMPLED)] * 3
    counts = StackCounts()
    for batch in Stacks(Dictionary()).batches(faults):
        counts.add(batch)
    for by in STACK_VIEWS:
        table = counts.table(by)
        assert sum(row.total for row in table) == len(faults)
        assert sum(row.samples for row in table) == len(rows)
        assert sum(row.total for row in table if not row.has_stack) == 3 + sum(
            before + 1 for line, before in rows if not line
        )
        assert all(row.label.endswith(" (learned)") == row.has_stack for row in table)
