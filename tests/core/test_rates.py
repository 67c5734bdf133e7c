"""Rows that stand for several faults: summaries say for how many, and where the rate differed."""

from __future__ import annotations

import pytest

from wstrace.analysis.filter import Filter
from wstrace.analysis.headline import answer, completeness, nothing
from wstrace.analysis.sampled import estimates
from wstrace.analysis.stacks import StackCounts, reason
from wstrace.analysis.summary import Summary
from wstrace.ledger import Ledger
from wstrace.schema import HOW_LOST, HOW_NO_PYTHON, PAGE_FAULT
from wstrace.testing import batch_of
from wstrace.trace_info import TraceInfo


def test_faults_stand_for_what_their_own_rows_say() -> None:
    summary, info = Summary(), TraceInfo(sampled=5)
    summary.add(batch_of(PAGE_FAULT, pid=1, tid=1, pc=0, va=[1, 2, 3], flags=0, sampled=[1, 1, 10]))
    summary.add(batch_of(PAGE_FAULT, pid=1, tid=1, pc=0, va=[4], flags=0))
    assert (summary.total, summary.in_all) == (4, 13)
    assert "4 faults sampled, 1 in 3.2 on average (about 13 in all)" in answer(summary, info, Filter(), 4)
    assert "lean" not in completeness(summary, info, Ledger(), 4), "tables weigh each record"


def test_rows_of_one_rate_are_told_by_it_and_lean_to_no_time() -> None:
    summary, info = Summary(), TraceInfo(sampled=10)
    summary.add(batch_of(PAGE_FAULT, pid=1, tid=1, pc=0, va=[1, 2, 3], flags=0, sampled=10))
    assert "3 faults sampled, 1 in 10 (about 30 in all)" in answer(summary, info, Filter(), 3)
    assert "lean" not in completeness(summary, info, Ledger(), 3)


def sampled(total: int, *, every: int, lost: int = 0, counted: int = 0) -> tuple[Summary, TraceInfo, Ledger]:
    """A trace of so many records, each one of `every` faults, of which the kernel counted `counted`; 0 = not known."""
    summary, info, ledger = Summary(), TraceInfo(sampled=every), Ledger()
    summary.add(batch_of(PAGE_FAULT, pid=1, tid=1, pc=0, va=list(range(total)), flags=0, sampled=every))
    ledger.set("recorded", total, PAGE_FAULT.name)
    ledger.set("lost_kernel", lost, "minor")
    ledger.set("counted", counted, "minor")
    return summary, info, ledger


def told(trace: tuple[Summary, TraceInfo, Ledger], filter: Filter | None = None) -> tuple[str, str]:  # noqa: A002
    """Lines 1 and 2."""
    summary, info, ledger = trace
    first = answer(summary, info, filter or Filter(), summary.total, ledger=ledger)
    return first, completeness(summary, info, ledger, summary.total)


def test_a_count_of_all_faults_is_told_instead_of_an_estimate() -> None:
    first, second = told(sampled(122, every=100, counted=24_062))
    assert first.startswith("122 of 24,062 faults sampled, 1 in 100, 0 from disk")
    assert "about 11,862 faults have no sample that stands for them (possible reason: they are of processes" in second


def test_faults_from_disk_are_told_as_the_kernel_counted_them_where_few_have_a_sample() -> None:
    """They have a counter of their own: fewer of them than one period have no sample at all."""
    trace = sampled(242, every=50, counted=12_191)
    trace[2].set("counted", 24, "major")
    assert told(trace)[0].startswith("242 of 12,215 faults sampled, 1 in 50, 24 of all from disk")
    assert ", 0 from disk" in told(trace, Filter(pids={1}))[0], "of some faults there is no count"
    hard = Filter(hard=True)
    assert nothing(Summary(), hard, 242, trace[1]) == "no sampled fault was read from disk"
    assert nothing(Summary(), hard, 242, TraceInfo()) == "no fault read from disk"


def test_what_is_within_the_error_of_the_samples_has_no_words() -> None:
    first, second = told(sampled(122, every=100, counted=15_800))  # 3 / sqrt(122) is 27 %
    assert first.startswith("122 of 15,800 faults sampled, 1 in 100,")
    assert "no sample" not in second
    assert "about 4,800 faults have no sample" in told(sampled(122, every=100, counted=17_000))[1]


def test_of_very_many_samples_one_percent_has_no_words() -> None:
    assert "no sample" not in told(sampled(200_000, every=2, counted=403_900))[1]
    assert "about 5,000 faults have no sample" in told(sampled(200_000, every=2, counted=405_000))[1]


def test_lost_samples_would_have_stood_for_faults() -> None:
    first, second = told(sampled(122, every=100, lost=118, counted=24_062))
    assert first.startswith("122 of 24,062 faults sampled, 1 in 100,")
    assert "no sample" not in second


def test_no_sample_at_all_stands_for_none() -> None:
    first, second = told(sampled(0, every=100, counted=8_000))
    assert first.startswith("0 of 8,000 faults sampled, 1 in 100,")
    assert "about 8,000 faults have no sample that stands for them" in second


def test_rates_that_differ_stand_beside_the_count_of_all() -> None:
    summary, info, ledger = sampled(300, every=10, counted=4_000)
    summary.add(batch_of(PAGE_FAULT, pid=1, tid=1, pc=0, va=list(range(100)), flags=0))
    ledger.set("recorded", 400, PAGE_FAULT.name)
    first, second = told((summary, info, ledger))
    assert first.startswith("400 of 4,000 faults sampled, 1 in 7.8 on average, 0 from disk")
    assert "about 900 faults have no sample" in second


def test_a_count_of_other_faults_than_these_is_not_told() -> None:
    kept = sampled(122, every=100, counted=24_062)
    kept[2].set("recorded", 240, PAGE_FAULT.name)  # a part of a trace has the ledger of the whole
    for trace in (sampled(122, every=100), sampled(122, every=100, counted=5_000), kept):
        first, second = told(trace)
        assert first.startswith("122 faults sampled, 1 in 100 (about 12,200 in all), 0 from disk")
        assert "no sample" not in second
    first, _ = told(sampled(122, every=100, counted=24_062), Filter(pids=(1,)))
    assert first.startswith("122 of 122 faults (")
    assert "sampled, 1 in 100 (about 12,200 in all)" in first


def test_of_a_trace_of_every_fault_nothing_is_said_of_samples() -> None:
    first, second = told(sampled(122, every=1, counted=24_062))
    assert first.startswith("122 faults, 0 from disk")
    assert "no sample" not in second


def test_rows_of_samples_are_estimates_that_sum_to_the_kernels_count() -> None:
    summary, info, ledger = Summary(), TraceInfo(sampled=10), Ledger()
    summary.add(batch_of(PAGE_FAULT, pid=1, tid=1, pc=0, va=[1, 2], flags=0, file=["quiet"] * 2))
    summary.add(batch_of(PAGE_FAULT, pid=1, tid=1, pc=0, va=[3, 4, 5], flags=[0, 1, 0], file=["burst"] * 3,
                         sampled=[100, 100, 50]))  # fmt: skip
    ledger.set("recorded", 5, PAGE_FAULT.name)
    ledger.set("counted", 270, "minor")
    of = estimates(summary, info, ledger, 5)
    assert of is not None
    rows = {row.label: (row.total, row.major, row.samples) for row in of.rows(summary.top("file", None))}
    assert rows == {"burst": (250, 83, 3), "quiet": (2, 0, 2), "(no sample stands for it)": (18, 0, 0)}
    assert sum(row.share for row in of.rows(summary.top("file", None))) == pytest.approx(1)
    ledger.set("counted", 2_700, "minor")
    most = estimates(summary, info, ledger, 5)
    assert most is not None
    order = [(row.label, row.total) for row in most.rows(summary.top("file", None))]
    assert order == [("burst", 250), ("quiet", 2), ("(no sample stands for it)", 2_448)], "the rest does not lead"
    assert {row.label: row.total for row in summary.top("file", None)} == {"burst": 3, "quiet": 2}, "records"


def test_stacks_of_samples_weigh_what_each_stands_for() -> None:
    counts = StackCounts()
    faults = {"pid": 1, "tid": 1, "pc": 0, "time_ns": 1, "flags": 0}
    counts.add(batch_of(PAGE_FAULT, va=[1, 2], stack_how=HOW_NO_PYTHON, **faults))
    counts.add(batch_of(PAGE_FAULT, va=[3, 4, 5], stack_how=HOW_LOST, sampled=100, **faults))
    counts.all_faults = 400
    rows = {row.label: (row.total, row.samples) for row in counts.table("line")}
    assert rows == {reason(HOW_LOST): (300, 3), reason(HOW_NO_PYTHON): (2, 0), "(no sample stands for it)": (98, 0)}
