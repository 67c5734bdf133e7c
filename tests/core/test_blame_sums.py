"""The three sums of several processes: rss_sum, pss and distinct, by name, and why one is not known."""

from __future__ import annotations

import pytest
from blame_scripted import ANON, APP, PAGE, SAVE, Script

from wstrace.analysis.blame.rows import as_dict
from wstrace.analysis.blame.sums import Sums, read_sums
from wstrace.analysis.blame.words import answer, completeness
from wstrace.schema import PAGE_EXCLUSIVE, PAGE_SHARED

SUMS = {"from_ns": 90, "to_ns": 110, "pids": [7, 8], "rss_sum": 8 * PAGE, "pss": 6 * PAGE, "distinct": 5 * PAGE,
        "why": ""}  # fmt: skip


def two(extra: object = None, shares: bool = False, pids: tuple[int, ...] = (7, 8), at: str = "peak") -> Script:
    """Two processes with 2 pages of their own each, and 2 that both have."""
    script = Script()
    for page in range(4):
        script.fault(10 + page, ANON + page * PAGE, APP if page < 2 else SAVE)
    known = {"shares": [1, 2]} if shares else {}
    for number, pid in enumerate(pids):
        script.snapshot(100 + number, (ANON, 2, PAGE_EXCLUSIVE), (ANON + 2 * PAGE, 2, PAGE_SHARED), pid=pid, **known)
    trace = script.trace()
    if extra is not None:
        trace.info.extra["sums"] = extra
    return trace.blame(at=at)


def test_the_sums_that_were_read_at_the_look_are_told_by_name():
    told = two(SUMS)
    assert told.sums == Sums(2, 8 * PAGE, 6 * PAGE, 5 * PAGE)
    assert answer(told).startswith(
        "24.0 KiB pss at the peak in 2 processes (rss_sum 32.0, distinct 20.0): of rss_sum 8.0 by load_frame"
    )
    assert "not known" not in completeness(told)
    total = as_dict(told, ["line"])["sums"]
    assert (total["rss_sum"], total["pss"], total["distinct"]) == (8 * PAGE, 6 * PAGE, 5 * PAGE)


def test_rows_are_by_pss_where_the_mappings_of_each_page_were_counted():
    told = two({**SUMS, "pss": None}, shares=True)
    assert answer(told).startswith("24.0 KiB pss at the peak in 2 processes (rss_sum 32.0, distinct 20.0): ")
    rows = {row.label: row.pss for row in told.rows("line", sort="pss")}
    assert (sum(rows.values()), rows["load_frame app.py:31"], rows["save app.py:40"]) == (6 * PAGE, 2 * PAGE, PAGE)


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (None, "the trace does not tell"),
        ({**SUMS, "to_ns": 99}, "another moment"),
        ({**SUMS, "pids": [7, 8, 9]}, "another moment"),
        ({**SUMS, "pss": None, "distinct": None, "why": "needs root"}, "needs root"),
    ],
)
def test_a_sum_that_is_not_known_is_told_with_the_reason(extra, why):
    told = two(extra)
    assert told.sums.pss is None
    assert why in told.sums.why
    assert answer(told).startswith("32.0 KiB rss_sum at the peak in 2 processes: ")
    assert f"pss and distinct not known: {told.sums.why}" in completeness(told)


def test_the_moment_that_was_asked_for_is_not_proposed():
    """GIVEN sums that were read later than the largest look THEN `--at peak` is proposed for other moments only."""
    told = two({**SUMS, "to_ns": 99})
    assert told.of.inputs.moment == "peak"
    assert told.sums.why == "they were read at another moment than this largest look"
    assert two({**SUMS, "to_ns": 99}, at="exit").sums.why.endswith("at the peak only (--at peak)")


def test_of_one_process_nothing_is_summed():
    told = two(SUMS, pids=(7,))
    assert answer(told).startswith("16.0 KiB resident at the peak: ")
    assert "not known" not in completeness(told)


@pytest.mark.parametrize("extra", ["x", {}, {**SUMS, "pids": "78"}, {**SUMS, "rss_sum": -1}, {**SUMS, "from_ns": True},
                                   {**SUMS, "pids": []}, {**SUMS, "rss_sum": 1 << 70}])  # fmt: skip
def test_what_a_damaged_file_says_is_not_believed(extra):
    assert read_sums(two(extra).of.info) is None
    assert two(extra).sums.pss is None
