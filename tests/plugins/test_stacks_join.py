"""Which fault a sample belongs to: the next of its thread, or none; and how many faults it stands for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wstrace.schema import HOW_OWN, PAGE_FAULT
from wstrace.testing import batch_of
from wstrace_plugins.stacks.join import Join, Stacks


def faults(*rows: tuple[int, int, int]):
    """Rows (time, tid, va)."""
    time_ns, tid, va = zip(*rows, strict=True)
    return batch_of(PAGE_FAULT, time_ns=time_ns, pid=7, tid=tid, pc=1, va=va, flags=0)


def samples(*rows: tuple[int, int, int]) -> Stacks:
    """Samples (time, tid, va), whose stack is their time."""
    time_ns, tid, va = (np.array(column, "<u8") for column in zip(*rows, strict=True))
    return Stacks(time_ns, tid.astype("<u4"), np.ones(len(va), "<u8"), va, time_ns.astype("<u4"),
                  np.full(len(va), HOW_OWN, "u1"))  # fmt: skip


def joined(join: Join, batch) -> dict[int, tuple[int, int]]:
    """time of the row -> (stack, weight)."""
    found = join.rows(batch)
    columns = (batch["time_ns"][found.rows].tolist(), found.stacks.stack.tolist(), found.weight.tolist())
    return {time_ns: (stack, weight) for time_ns, stack, weight in zip(*columns, strict=True)}


def test_a_sample_belongs_to_the_next_fault_of_its_thread():
    join = Join()
    join.add(samples((10, 1, 0x1000)))
    assert joined(join, faults((5, 1, 0x1000), (11, 2, 0x1000), (12, 1, 0x1000), (13, 1, 0x1000))) == {12: (10, 2)}


def test_a_sample_whose_fault_has_no_row_belongs_to_none():
    """The fault ended in a signal, or its row was lost: the next row is of another address."""
    join = Join()
    join.add(samples((10, 1, 0x1000)))
    assert joined(join, faults((12, 1, 0x2000), (13, 1, 0x1000))) == {}
    assert join.without_row == 1
    assert len(join.waiting.tid) == 0


def test_a_sample_waits_for_a_row_of_a_later_batch():
    join = Join()
    join.add(samples((10, 1, 0x1000)))
    assert joined(join, faults((9, 1, 0x1000), (12, 2, 0x1000))) == {}
    assert joined(join, faults((99, 1, 0x1000))) == {99: (10, 2)}


def test_weights_count_the_rows_of_the_thread_since_its_last_sample():
    join = Join()
    join.add(samples((1, 1, 1), (5, 1, 3), (6, 2, 9)))
    batch = faults((2, 1, 1), (3, 1, 2), (4, 2, 8), (6, 1, 3), (7, 2, 9), (8, 1, 4))
    assert joined(join, batch) == {2: (1, 1), 6: (5, 2), 7: (6, 2)}
    join.add(samples((20, 1, 7)))
    assert joined(join, faults((11, 1, 5), (21, 1, 7))) == {21: (20, 3)}


def test_two_samples_of_one_fault_are_one():
    """A thread that was attached while it was being started has two events."""
    join = Join()
    join.add(samples((1, 1, 1), (1, 1, 1)))
    assert joined(join, faults((2, 1, 1))) == {2: (1, 1)}


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=60), st.integers(1, 20))
def test_every_sample_gets_its_own_fault_and_the_weights_add_up(made: list[tuple[int, bool]], size: int):
    """Against the plain statement: faults of three threads, cut into batches anywhere."""
    rows = [(10 * n + 5, tid, n) for n, (tid, _) in enumerate(made)]
    taken = [(10 * n, tid, n) for n, (tid, sampled) in enumerate(made) if sampled]
    join, found = Join(), {}
    if taken:
        join.add(samples(*taken))
    for start in range(0, len(rows), size):
        found |= joined(join, faults(*rows[start : start + size]))
    assert {time: stack for time, (stack, _) in found.items()} == {time + 5: time for time, _, _ in taken}
    for thread in (1, 2, 3):
        own = [n for n, (tid, _) in enumerate(made) if tid == thread]
        last = max((place for place, n in enumerate(own) if made[n][1]), default=-1)
        assert sum(weight for time, (_, weight) in found.items() if made[(time - 5) // 10][0] == thread) == last + 1
