"""Blame of traces with one of several faults: memory is shared out by the faults that were recorded, as an estimate."""

from __future__ import annotations

import pytest
from blame_scripted import ANON, APP, FILE, IMPORT, PAGE, SAVE, Script

from wstrace.analysis.blame.orders import VIEWS
from wstrace.analysis.blame.rows import Blame, as_dict
from wstrace.schema import LOSS_UNMAPPED, PAGE_EXCLUSIVE, PAGE_FILE, PAGE_HUGE

NONE = "(not recorded: one of 4 faults is, or came without one)"


def blame(script: Script, every: int = 4) -> Blame:
    trace = script.trace()
    trace.info.sampled = every
    return trace.blame()


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
    assert not told.of.complete
    assert not told.of.unsure, "it is an estimate, and no record of what unmaps is missing"


@pytest.mark.parametrize("view", VIEWS)
def test_the_rows_sum_to_the_systems_totals(view):
    script = Script()
    for number in range(5):
        script.fault(10 + number, ANON + 7 * number * PAGE, APP if number % 2 else SAVE)
    script.snapshot(100, (ANON, 30, PAGE_EXCLUSIVE), (ANON + 40 * PAGE, 7, 0), (FILE, 9, PAGE_FILE))
    report = as_dict(blame(script), [view])
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
