"""What is told of `brought` and `again` where one fault maps several pages or the page of zeros."""

from __future__ import annotations

import pytest
from blame_scripted import ANON, APP, FILE, PAGE, SAVE, Script

from wstrace.analysis.blame.rows import Blame, as_dict
from wstrace.analysis.blame.words import brought
from wstrace.schema import (
    FAULT_ACCESS_KNOWN,
    FAULT_WRITE,
    LOSS_DISCARDED,
    LOSS_MOVED,
    LOSS_REPLACED,
    LOSS_UNMAPPED,
    PAGE_EXCLUSIVE,
    PAGE_FILE,
    PAGE_SHARED,
)
from wstrace_exporters.console.blame_tables import table

AT_LEAST = ">"


def marked(told: Blame) -> dict[str, list[str]]:
    """label -> its figures that bear a mark."""
    shown = table(told, "line", told.rows("line"), 10)
    return {str(row[-1]): [cell for cell in row if isinstance(cell, str) and cell[:1] in (AT_LEAST, "~")]
            for row in shown.rows}  # fmt: skip


def read_twice(since: int = LOSS_DISCARDED) -> Script:
    """32 pages of a file in two windows, gone, and 16 of them read again, in one window by a fault beside the first."""
    script = Script()
    for page in (0, 16):
        script.fault(10 + page, FILE + page * PAGE, APP)
    script.lose(50, since, start=FILE, end=FILE + 32 * PAGE)
    script.fault(60, FILE + PAGE, SAVE)
    script.snapshot(100, (FILE, 16, PAGE_FILE | PAGE_SHARED))
    return script


def test_what_came_around_pages_that_are_gone_makes_brought_a_lower_bound():
    told = read_twice().blame()
    rows = {row.label: row for row in told.rows("line")}
    assert rows["load_frame app.py:31"].brought == 2 * PAGE
    assert (rows["load_frame app.py:31"].brought_more, rows["save app.py:40"].brought_more) == (2, 0)
    assert marked(told)["load_frame app.py:31"] == [f"{AT_LEAST}8.0 KiB"]
    assert as_dict(told, ["line"])["total"]["brought_more"] == 2


@pytest.mark.parametrize("event", [LOSS_DISCARDED, LOSS_UNMAPPED])
def test_what_came_again_with_another_page_makes_again_a_lower_bound(event):
    """GIVEN no page that faulted twice THEN `again` is told nevertheless: what came may have been there before."""
    told = read_twice(event).blame()
    rows = {row.label: row for row in told.rows("line")}
    assert (rows["load_frame app.py:31"].again_more, rows["save app.py:40"].again_more) == (0, 1)
    assert marked(told)["save app.py:40"] == [f"{AT_LEAST}0 B"]
    assert marked(told)["Total"] == [f"{AT_LEAST}72.0 KiB", f"{AT_LEAST}0 B"]


def test_another_file_is_not_there_again():
    script = Script()
    other = script.map_file("/srv/app/other")
    script.fault(10, other, APP)
    script.lose(50, LOSS_REPLACED, start=FILE, end=FILE + (4 << 24))
    script.fault(60, FILE + PAGE, SAVE)
    script.snapshot(100, (FILE, 2, PAGE_FILE | PAGE_SHARED))
    assert [row.again_more for row in script.blame().rows("line")] == [0, 0]


def test_huge_pages_that_are_gone_make_brought_a_lower_bound_and_single_pages_do_not():
    script = Script()
    huge = ANON + (2 << 20)
    for time in (10, 30, 50):
        script.fault(time, huge, APP)  # the only fault of its life on 2 MiB
        for page in range(8):
            script.fault(time + page, ANON + page * PAGE, SAVE)
        script.lose(time + 10, LOSS_UNMAPPED, start=ANON, end=ANON + (4 << 20))
    script.snapshot(100, (FILE, 1, PAGE_FILE | PAGE_SHARED))
    told = script.blame()
    rows = {row.function: row for row in told.rows("line")}
    assert (rows["load_frame"].brought_more, rows["load_frame"].again_more) == (3, 2)
    assert (rows["save"].brought_more, rows["save"].again_more) == (0, 0)


def zeros(*, gone: bool, flags: int = 0) -> Blame:
    """4 pages that one line reads, or writes, and that another one writes then."""
    script = Script()
    for page in range(4):
        script.fault(10 + page, ANON + page * PAGE, APP, flags=flags)
        script.fault(20 + page, ANON + page * PAGE, SAVE, flags=flags and flags | FAULT_WRITE)
    if gone:
        script.lose(50, LOSS_UNMAPPED, start=ANON, end=ANON + 4 * PAGE)
    there = (FILE, 1, PAGE_FILE | PAGE_SHARED) if gone else (ANON, 4, PAGE_EXCLUSIVE)
    script.snapshot(100, there)
    return script.blame()


@pytest.mark.parametrize("gone", [False, True])
def test_zero_pages_that_were_read_and_then_written_are_marked_in_brought(gone):
    told = zeros(gone=gone)
    first = next(row for row in told.rows("line") if row.function == "load_frame")
    assert first.brought_estimated == first.brought > 0
    assert f"~{first.brought // 1024}.0 KiB" in marked(told)[first.label]
    sure = next(row for row in zeros(gone=gone, flags=FAULT_ACCESS_KNOWN).rows("line") if row.function == "load_frame")
    assert sure.brought == sure.brought_estimated == 0


def test_the_first_line_of_what_was_brought_bears_the_marks():
    script = read_twice()
    script.batches.pop()
    assert brought(script.blame()).startswith("at least 12.0 KiB brought: 8.0 by load_frame")


@pytest.mark.parametrize("moves", [20, 4999])
def test_what_was_moved_too_often_is_not_brought_twice(moves):
    """GIVEN 64 pages that are moved to and fro THEN whoever brought them, it was once."""
    script = Script()
    for page in range(64):
        script.fault(10 + page, ANON + page * PAGE, APP)
    places = ANON, ANON + 64 * PAGE
    for turn in range(moves):
        start, to = places[turn & 1], places[~turn & 1]
        script.lose(100 + turn, LOSS_MOVED, start=start, end=start + 64 * PAGE, to=to)
    script.snapshot(10_000, (places[moves & 1], 64, PAGE_EXCLUSIVE))
    told = script.blame()
    rows = told.rows("line")
    assert sum(row.resident for row in rows) == sum(row.brought for row in rows) == 64 * PAGE
    of_line = next(row for row in rows if row.label == "load_frame app.py:31")
    assert of_line.brought == 64 * PAGE
    if moves < 4096:
        assert (len(rows), of_line.brought_more, of_line.resident) == (1, 0, 64 * PAGE)
    else:
        other = next(row for row in rows if row is not of_line)
        assert (other.reason, other.resident, other.brought) == ("too long a way", 64 * PAGE, 0)
        assert (of_line.brought_more, of_line.resident) == (0, 0)
        assert marked(told)["(too long a way)"] == [f"{AT_LEAST}0 B"]
        assert marked(told)["Total"] == [f"{AT_LEAST}256.0 KiB"]
