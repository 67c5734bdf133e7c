"""What is unwound at once, and what no more.

Small batches of samples are unwound together, as a step of numpy costs as much for one as for hundreds. Samples that
have waited for long are given up, so that the records behind them are not.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

if sys.platform != "linux":
    pytest.skip("native stacks are Linux's", allow_module_level=True)

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.interfaces import Context
from wstrace.schema import PAGE_FAULT, STACK_DUMP
from wstrace_stacks.enricher import BEHIND_NS, NativeStacks
from wstrace_stacks.linux.backend import AT_ONCE, Worker


class Collects(Worker):
    """Keeps what is to be unwound at once."""

    def __init__(self) -> None:
        self.got: list[dict[str, np.ndarray]] = []

    def _some(self, batch: Mapping[str, np.ndarray]) -> None:
        self.got.append(dict(batch))


def samples(n: int, words: int, begin: int, time_ns: int = 0) -> Batch:
    number = begin + np.arange(n)
    columns: dict[str, Any] = {name: number.astype("<u4") for name in ("pid", "tid", "size")}
    columns |= {name: number.astype("<u8") for name in ("pc", "va")}
    columns["time_ns"] = np.full(n, time_ns, "<u8")
    columns["registers"] = number[:, None].astype("<u8") * np.ones(17, "<u8")
    columns["dump"] = number[:, None].astype("<u8") + np.arange(words, dtype="<u8")
    return Batch(STACK_DUMP, columns)


def test_small_batches_of_dumps_of_several_sizes_are_unwound_together() -> None:
    worker = Collects()
    batches = [samples(3, 4, 1), samples(2, 6, 10), samples(1, 0, 20)]
    worker.unwind(batches)
    [got] = worker.got
    assert got["tid"].tolist() == [1, 2, 3, 10, 11, 20]
    assert got["registers"][:, 3].tolist() == [1, 2, 3, 10, 11, 20]
    assert got["dump"].tolist() == [
        [1, 2, 3, 4, 0, 0], [2, 3, 4, 5, 0, 0], [3, 4, 5, 6, 0, 0],
        [10, 11, 12, 13, 14, 15], [11, 12, 13, 14, 15, 16], [0, 0, 0, 0, 0, 0],
    ]  # fmt: skip


def test_no_more_are_unwound_at_once_than_may_be() -> None:
    worker = Collects()
    worker.unwind([samples(AT_ONCE - 1, 1, 0), samples(2, 1, 5000), samples(2 * AT_ONCE + 1, 1, 10_000)])
    assert [len(one["tid"]) for one in worker.got] == [AT_ONCE - 1, 2, AT_ONCE, AT_ONCE, 1]
    assert sum(one["tid"].sum() for one in worker.got) == sum(
        int((begin + np.arange(n)).sum()) for n, begin in ((AT_ONCE - 1, 0), (2, 5000), (2 * AT_ONCE + 1, 10_000))
    )


def test_without_samples_nothing_is_unwound() -> None:
    worker = Collects()
    worker.unwind([])
    assert worker.got == []


@pytest.mark.parametrize(("waited_ns", "unwound"), [(-60 * 10**9, 3), (BEHIND_NS + 1, 0)])
def test_samples_that_wait_for_too_long_are_given_up_and_told(waited_ns: int, unwound: int) -> None:
    context = Context()
    enricher = NativeStacks()
    enricher.start(context)
    taken = samples(3, 4, 1, now_ns() - waited_ns)
    zeros = np.zeros(2, "<u8")
    columns = {"time_ns": zeros, "pid": zeros, "tid": zeros, "pc": zeros, "va": zeros, "flags": zeros}
    assert list(enricher.enrich(taken)) == []
    faults = list(enricher.enrich(Batch(PAGE_FAULT, {name: one.astype("<u4") for name, one in columns.items()})))[-1]
    assert len(faults) == 2, "no record is given up"
    assert enricher.statistics()["unwound"] == unwound
    assert context.ledger.get("stacks_lost", "unwound too slowly") == 3 - unwound
    list(enricher.close())
