"""Blame of faults without times, as Windows records them: only the window of their batch is known."""

import pytest
from blame_scripted import ANON, APP, PAGE, SAVE, Script

from wstrace.analysis.blame.rows import as_dict
from wstrace.batch import Batch
from wstrace.schema import PAGE_EXCLUSIVE, PAGE_FAULT, PROCESS
from wstrace.table import Selection
from wstrace.testing import trace_of
from wstrace.trace import Trace


def windowed(script: Script, window: tuple[int, int], launched: bool) -> Trace:
    """The script's trace, with its faults in one batch of this window."""
    trace = script.trace()
    batches = []
    for batch in trace.read(Selection()):
        if batch.schema is PAGE_FAULT:
            columns = {name: column for name, column in batch.columns.items() if name != "time_ns"}
            batch = Batch(PAGE_FAULT, columns, window=window, strings=batch.strings)
        if launched or batch.schema is not PROCESS:
            batches.append(batch)
    found = trace_of(*batches)
    found.info.page_size = PAGE
    return found


def two_pages() -> Script:
    script = Script()
    script.fault(10, ANON, APP)
    script.fault(20, ANON + PAGE, SAVE)
    script.fault(30, ANON + 2 * PAGE, SAVE)
    script.snapshot(25, (ANON, 2, PAGE_EXCLUSIVE))
    return script


@pytest.mark.parametrize("launched", [True, False])
def test_a_window_that_holds_the_snapshot_may_have_brought_its_pages(launched):
    report = as_dict(windowed(two_pages(), (5, 40), launched).blame(), ["line"])
    rows = {row["function"]: (row["resident"], row["estimated"]) for row in report["rows"]}
    doubt = 0 if launched else PAGE
    # a page of an attached process may also have been there before, and have come again behind the snapshot
    assert rows == {"load_frame": (PAGE, doubt), "save": (PAGE, doubt)}


def test_a_window_behind_the_snapshot_brought_nothing_of_it():
    report = as_dict(windowed(two_pages(), (26, 40), launched=True).blame(), ["line"])
    assert [(row["label"], row["resident"]) for row in report["rows"] if row["resident"]] == [
        ("(came without a fault)", 2 * PAGE)
    ]


def test_a_window_before_the_snapshot_is_as_certain_as_a_time():
    report = as_dict(windowed(two_pages(), (5, 25), launched=False).blame(), ["line"])
    assert {row["function"]: row["estimated"] for row in report["rows"]} == {"load_frame": 0, "save": 0}
