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
from wstrace.schema import MARK, PAGE_FAULT, PROCESS, STACK_DUMP
from wstrace_plugins.stacks import enricher as enricher_module
from wstrace_plugins.stacks.enricher import BEHIND_NS, NativeStacks
from wstrace_plugins.stacks.linux.backend import AT_ONCE, Worker


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


class Held:
    """An enricher, what it unwound at once, and whether more batches wait behind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.behind, self.at_once = True, list[int]()
        self.context, self.enricher = Context(behind=[lambda: self.behind]), NativeStacks()
        monkeypatch.setattr(Worker, "_some", lambda worker, batch: self.at_once.append(len(batch["tid"])))
        self.enricher.start(self.context)

    def samples(self, n: int = 3) -> None:
        assert list(self.enricher.enrich(samples(n, 1, 1, now_ns()))) == []

    def faults(self, n: int = 2) -> list[Batch]:
        columns = {name: np.zeros(n, "<u8") for name in ("time_ns", "pid", "tid", "pc", "va", "flags")}
        return list(self.enricher.enrich(Batch(PAGE_FAULT, columns)))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


def test_while_more_batches_wait_samples_of_several_are_unwound_together(held: Held) -> None:
    held.samples()
    assert held.faults(2) == []
    held.samples()
    assert held.faults(5) == []
    assert held.enricher.held == 7
    held.behind = False
    held.samples()
    given = held.faults(1)
    assert [len(one) for one in given] == [2, 5, 1], "in their order"
    assert all("native_stack" in one for one in given)
    assert held.at_once == [9]
    assert held.enricher.held == 0


def test_without_samples_no_fault_waits(held: Held) -> None:
    assert [len(one) for one in held.faults(2)] == [2]


@pytest.mark.parametrize("bound", ["MOST_TOGETHER", "MOST_ROWS", "MOST_HELD_NS"])
def test_faults_wait_within_bounds(held: Held, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    held.samples()
    assert held.faults() == []
    monkeypatch.setattr(enricher_module, bound, 2)  # 3 samples, 4 faults, more than 2 ns
    assert [len(one) for one in held.faults()] == [2, 2]


def test_faults_that_wait_are_given_before_what_follows_them(held: Held) -> None:
    held.samples()
    assert held.faults() == []
    mapping, snapshot = (Batch(schema, {}) for schema in (PROCESS, MARK))
    assert list(held.enricher.enrich(mapping)) == [mapping], "they refer to it"
    *faults, last = held.enricher.enrich(snapshot)
    assert [len(one) for one in faults] == [2]
    assert last is snapshot


def test_mappings_are_kept_for_the_samples_that_wait(held: Held) -> None:
    [since] = held.context.held_since
    begin = now_ns()
    assert since() > begin
    for time_ns in (begin + 7, begin + 5, begin + 9):
        assert list(held.enricher.enrich(samples(2, 1, 1, time_ns))) == []
    assert held.faults() == []
    assert since() == begin + 5
    held.behind = False
    held.faults()
    assert since() > now_ns()


def test_faults_that_wait_are_given_in_the_end(held: Held) -> None:
    held.samples()
    assert held.faults() == []
    assert [len(one) for one in held.enricher.close()] == [2]


def test_where_unwinding_fails_no_fault_is_lost(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(worker: Worker, batch: Any) -> None:
        raise ValueError("a bug")

    held.samples()
    assert held.faults() == []
    monkeypatch.setattr(Worker, "_some", fail)
    held.behind = False
    given = held.faults(5)
    assert [(len(one), "native_stack" in one) for one in given] == [(2, False), (5, False)]
    assert "native stacks of some faults: a bug" in held.context.info.lacking
    with pytest.raises(ValueError, match="a bug"):
        held.faults()
    assert held.enricher.held == 0
