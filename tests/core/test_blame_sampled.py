"""Blame of traces with one of several faults: memory is shared out by the faults that were recorded, as an estimate."""

from __future__ import annotations

import pytest
from blame_scripted import ANON, APP, FILE, IMPORT, PAGE, SAVE, Script

from wstrace.analysis.blame.orders import VIEWS
from wstrace.analysis.blame.rows import Blame, as_dict
from wstrace.analysis.blame.unshared import Unshared
from wstrace.analysis.blame.words import answer
from wstrace.schema import LOSS_FORKED, LOSS_UNMAPPED, PAGE_EXCLUSIVE, PAGE_FILE, PAGE_HUGE

NONE = "(not recorded: one of 4 faults is, or came without one)"


def blame(script: Script, every: int = 4, *, threads: bool = False) -> Blame:
    trace = script.trace()
    trace.info.sampled = every
    return trace.blame(threads=threads)


def rows(told: Blame, by: str = "line") -> dict[str, tuple[int, int, int]]:
    """label -> resident and estimated pages, and the faults that this rests on."""
    return {row.label: (row.resident // PAGE, row.estimated // PAGE, row.samples) for row in told.rows(by)}


def test_the_pages_of_a_kind_of_memory_are_shared_out_by_its_recorded_faults():
    script = Script()
    for number, stack in enumerate([APP, APP, APP, SAVE]):
        script.fault(10 + number, ANON + 4 * number * PAGE, stack)
    script.fault(20, FILE, IMPORT)
    script.snapshot(100, (ANON, 16, PAGE_EXCLUSIVE), (FILE, 40, PAGE_FILE))
    told = blame(script)
    assert rows(told) == {"import pandas app.py:3": (40, 40, 1), "load_frame app.py:31": (12, 12, 3),
                          "save app.py:40": (4, 4, 1)}  # fmt: skip
    few = "by import pandas app.py:3 (1 sample), ~48.0 by load_frame app.py:31 (3 samples), ~16.0 by save app.py:40"
    assert answer(told).endswith(f": ~160.0 {few} (1 sample)")
    assert not told.of.complete
    assert not told.of.unsure, "it is an estimate, and no record of what unmaps is missing"


@pytest.mark.parametrize("view", VIEWS)
def test_the_rows_sum_to_the_systems_totals(view):
    script = Script()
    for number in range(5):
        script.fault(10 + number, ANON + 7 * number * PAGE, APP if number % 2 else SAVE)
    script.snapshot(100, (ANON, 30, PAGE_EXCLUSIVE), (ANON + 40 * PAGE, 7, 0), (FILE, 9, PAGE_FILE))
    report = as_dict(blame(script, threads=view == "thread"), [view])
    assert (report["total"]["resident"], report["total"]["private"]) == (46 * PAGE, 30 * PAGE)
    for column in ("resident", "private", "shared", "estimated", "faults", "brought"):
        assert sum(row[column] for row in report["rows"]) == report["total"][column], column


def test_more_than_the_recorded_faults_can_have_brought_is_nobodys():
    script = Script()
    for number in range(9):
        script.fault(10 + number, ANON + 4 * number * PAGE, APP)
    script.snapshot(100, (ANON, 36, PAGE_EXCLUSIVE), (ANON + 100 * PAGE, 1000, PAGE_EXCLUSIVE))
    told = blame(script)
    assert rows(told) == {NONE: (1000, 0, 0), "load_frame app.py:31": (36, 36, 9)}
    assert rows(told, "file") == {"[anon]": (1036, 0, 0)}, "no estimate"


def test_memory_without_a_recorded_fault_is_nobodys_and_that_of_huge_pages_is_their_own():
    script = Script()
    script.fault(10, ANON, APP)
    script.fault(11, ANON + 512 * PAGE, SAVE)
    script.snapshot(100, (ANON, 4, PAGE_EXCLUSIVE), (ANON + 512 * PAGE, 1024, PAGE_EXCLUSIVE | PAGE_HUGE),
                    (FILE, 3, PAGE_FILE))  # fmt: skip
    assert rows(blame(script)) == {"save app.py:40": (1024, 1024, 1), "load_frame app.py:31": (4, 4, 1),
                                   NONE: (3, 0, 0)}  # fmt: skip


def test_a_fault_whose_page_has_gone_stands_for_none_that_is_there():
    script = Script()
    script.fault(10, ANON, APP)
    script.lose(20, LOSS_UNMAPPED, start=ANON, end=ANON + 8 * PAGE)
    script.fault(30, ANON + PAGE, SAVE)
    script.snapshot(100, (ANON, 4, PAGE_EXCLUSIVE))
    told = blame(script)
    assert {row.label: row.resident // PAGE for row in told.rows("line")} == {
        "save app.py:40": 4, "load_frame app.py:31": 0}  # fmt: skip
    assert {row.label: row.brought // PAGE for row in told.rows("line")} == {
        "save app.py:40": 4, "load_frame app.py:31": 4}  # fmt: skip


def test_what_was_there_before_the_trace_is_not_shared_out():
    script = Script()
    del script.batches[1]  # the process did not begin in the trace
    script.snapshot(5, (ANON, 20, PAGE_EXCLUSIVE), (FILE, 30, PAGE_FILE))
    for number in range(3):
        script.fault(10 + number, ANON + (20 + 4 * number) * PAGE, APP)
    script.fault(20, FILE + 35 * PAGE, SAVE)
    script.snapshot(100, (ANON, 32, PAGE_EXCLUSIVE), (FILE, 40, PAGE_FILE), number=1)
    assert rows(blame(script)) == {"(before the trace)": (50, 0, 0), "load_frame app.py:31": (12, 12, 3),
                                   "save app.py:40": (10, 10, 1)}  # fmt: skip


def test_a_fault_of_its_own_rate_has_the_share_of_those_that_it_stands_for():
    """All faults of one line were recorded, and one of ten of the other's: a rate between them is neither's."""
    script = Script()
    for number in range(100):
        script.fault(10 + number, ANON + number * PAGE, APP)
    for number in range(10):
        script.fault(500 + number, ANON + (100 + 10 * number) * PAGE, SAVE, sampled=10)
    script.snapshot(900, (ANON, 200, PAGE_EXCLUSIVE))
    assert rows(script.blame()) == {"load_frame app.py:31": (100, 100, 100), "save app.py:40": (100, 100, 10)}


def test_pages_of_a_file_come_with_faults_of_any_rate():
    script = Script()
    for number in range(3):
        script.fault(10 + number, FILE + number * 32 * PAGE, APP)
    script.fault(500, FILE + 96 * PAGE, SAVE, sampled=3)
    script.snapshot(900, (FILE, 126, PAGE_FILE))
    assert {label: row[0] for label, row in rows(script.blame()).items()} == {
        "load_frame app.py:31": 64, "save app.py:40": 62}  # fmt: skip


def test_a_copied_page_counts_for_those_that_its_fault_stands_for():
    script = Script()
    for number in range(8):
        script.fault(10 + number, ANON + number * PAGE, APP)
    script.lose(50, LOSS_FORKED, pid=8, other=7)
    script.fault(60, ANON, SAVE, pid=8)
    script.fault(70, ANON + PAGE, APP, pid=8, sampled=7)
    script.snapshot(900, (ANON, 8, 0))
    unshared = Unshared(script.blame())
    assert {row.label: n // PAGE for row, n in unshared.rows("line")} == {
        "save app.py:40": 1,
        "load_frame app.py:31": 7,
    }
    assert [fork.n_bytes // PAGE for fork in unshared.forks()] == [unshared.total // PAGE] == [8]


@pytest.mark.parametrize("alone", [0, 40])
def test_what_a_child_wrote_is_its_own_although_its_parents_faults_were_recorded_on_these_pages(alone):
    """GIVEN 200 pages of which a child wrote 120 and, as the parent wrote them first, has `alone` more for itself."""
    script = Script()
    for page in range(0, 200, 4):
        script.fault(10 + page, ANON + page * PAGE, APP)
    script.lose(300, LOSS_FORKED, pid=8, other=7)
    for page in range(1, 120, 4):
        script.fault(310 + page, ANON + page * PAGE, SAVE, pid=8)
    own = 120 + alone
    script.snapshot(900, (ANON, own, PAGE_EXCLUSIVE), (ANON + own * PAGE, 200 - own, 0), pid=8)
    script.snapshot(900, (ANON, own, PAGE_EXCLUSIVE), (ANON + own * PAGE, 200 - own, 0))
    trace = script.trace()
    trace.info.sampled = 4
    for pid, lines in ((7, {"load_frame app.py:31": 200}), (8, {"load_frame app.py:31": 80, "save app.py:40": 120})):
        told = trace.blame(pids=[pid])
        assert {row.label: row.resident // PAGE for row in told.rows("line") if row.resident} == lines
