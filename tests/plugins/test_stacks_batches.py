"""Which samples are unwound together, which are given up, and to which faults their stacks belong.

Small batches of samples are unwound together, as a step of numpy costs as much for one as for hundreds. Samples that
have waited for long are given up, so that the records behind them are not.
"""

import sys

import numpy as np
import pytest

if sys.platform != "linux":
    pytest.skip("native stacks are Linux's", allow_module_level=True)

from hypothesis import given
from hypothesis import strategies as st

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.interfaces import Context
from wstrace.schema import HOW_OWN, PAGE_FAULT, STACK_DUMP
from wstrace.testing import batch_of
from wstrace_plugins.stacks.enricher import BEHIND_NS, NativeStacks
from wstrace_plugins.stacks.join import Join, Stacks


def samples(n: int, words: int, begin: int, time_ns: int = 0) -> Batch:
    number = begin + np.arange(n)
    columns = {name: number.astype("<u4") for name in ("pid", "tid", "size")}
    columns |= {name: number.astype("<u8") for name in ("pc", "va")}
    columns["time_ns"] = np.full(n, time_ns, "<u8")
    columns["registers"] = number[:, None].astype("<u8") * np.ones(17, "<u8")
    columns["dump"] = number[:, None].astype("<u8") + np.arange(words, dtype="<u8")
    return Batch(STACK_DUMP, columns)


@pytest.mark.parametrize(("waited_ns", "given_up"), [(-60 * 10**9, 0), (BEHIND_NS + 1, 3)])
def test_samples_that_wait_for_too_long_are_given_up_and_reported(waited_ns, given_up):
    context = Context()
    enricher = NativeStacks()
    enricher.start(context)
    taken = samples(3, 4, 1, now_ns() - waited_ns)
    zeros = np.zeros(2, "<u8")
    columns = {"time_ns": zeros, "pid": zeros, "tid": zeros, "pc": zeros, "va": zeros, "flags": zeros}
    assert list(enricher.enrich(taken)) == []
    faults = list(enricher.enrich(Batch(PAGE_FAULT, {name: one.astype("<u4") for name, one in columns.items()})))[-1]
    assert len(faults) == 2, "no record is given up"
    assert context.ledger.get("stacks_lost", "unwound too slowly") == given_up
    list(enricher.close())


def faults(*rows: tuple[int, int, int]):
    """Rows (time, tid, va)."""
    time_ns, tid, va = zip(*rows, strict=True)
    return batch_of(PAGE_FAULT, time_ns=time_ns, pid=7, tid=tid, pc=1, va=va, flags=0)


def unwound(*rows: tuple[int, int, int]) -> Stacks:
    """Samples (time, tid, va), whose stack is their time."""
    time_ns, tid, va = (np.array(column, "<u8") for column in zip(*rows, strict=True))
    return Stacks(time_ns, tid.astype("<u4"), np.ones(len(va), "<u8"), va, time_ns.astype("<u4"),
                  np.full(len(va), HOW_OWN, "u1"))  # fmt: skip


def joined(join: Join, batch) -> dict[int, tuple[int, int]]:
    """time of the row -> (stack, weight)."""
    found = join.rows(batch)
    columns = (batch["time_ns"][found.rows].tolist(), found.stacks.stack.tolist(), found.weight.tolist())
    return {time_ns: (stack, weight) for time_ns, stack, weight in zip(*columns, strict=True)}


def test_a_sample_without_a_row_of_its_fault_belongs_to_none():
    """The fault ended in a signal, or its row was lost: the next row is of another address."""
    join = Join()
    join.add(unwound((10, 1, 0x1000)))
    assert joined(join, faults((12, 1, 0x2000), (13, 1, 0x1000))) == {}
    assert join.without_row == 1
    assert len(join.waiting.tid) == 0


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=60), st.integers(1, 20))
def test_every_sample_gets_its_own_fault_and_the_weights_add_up(made, size):
    """Against the plain statement: faults of three threads, cut into batches anywhere."""
    rows = [(10 * n + 5, tid, n) for n, (tid, _) in enumerate(made)]
    taken = [(10 * n, tid, n) for n, (tid, sampled) in enumerate(made) if sampled]
    join, found = Join(), {}
    if taken:
        join.add(unwound(*taken))
    for start in range(0, len(rows), size):
        found |= joined(join, faults(*rows[start : start + size]))
    assert {time: stack for time, (stack, _) in found.items()} == {time + 5: time for time, _, _ in taken}
    for thread in (1, 2, 3):
        own = [n for n, (tid, _) in enumerate(made) if tid == thread]
        last = max((place for place, n in enumerate(own) if made[n][1]), default=-1)
        assert sum(weight for time, (_, weight) in found.items() if made[(time - 5) // 10][0] == thread) == last + 1
