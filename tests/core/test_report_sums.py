"""What several processes have together: each physical page once where that is known, and what the first line says."""

import pytest
from kit.blame_scripted import ANON, APP, PAGE, SAVE, Script

from wstrace.analysis.filter import Filter
from wstrace.analysis.moments import read_sums
from wstrace.analysis.report import Report
from wstrace.analysis.report import report as report_of
from wstrace.schema import LOSS_EXECUTED, PAGE_EXCLUSIVE, PAGE_SHARED, PROCESS_EXEC

SUMS = {"from_ns": 90, "to_ns": 110, "pids": [7, 8], "pss": 6 * PAGE, "distinct": 5 * PAGE,
        "why": ""}  # fmt: skip


def two(extra: object = None, shares: bool = False, pids: tuple[int, ...] = (7, 8), at: str = "peak") -> Report:
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
    return trace.report(at=at)


def test_each_page_counts_once_where_the_distinct_ones_were_read():
    shown = two(SUMS)
    assert shown.answer.startswith("20.0 KiB at the peak in 2 processes, shared memory divided: ")
    assert (shown.total["resident"], shown.total["rss"]) == (5 * PAGE, 8 * PAGE)


def test_shared_pages_are_divided_where_the_mappings_of_each_page_were_counted():
    shown = two(shares=True)
    assert shown.answer.startswith("24.0 KiB at the peak in 2 processes, shared memory divided: ")
    rows = {row.label: row["pss"] for row in shown.rows}
    assert (sum(rows.values()), rows["load_frame app.py:31"], rows["save app.py:40"]) == (6 * PAGE, 2 * PAGE, PAGE)


@pytest.mark.parametrize(
    "extra", [None, {**SUMS, "to_ns": 99}, {**SUMS, "pids": [7, 8, 9]}, {**SUMS, "pss": None, "distinct": None}]
)
def test_of_sums_that_are_not_known_the_first_line_says_that_shared_pages_count_for_each(extra):
    shown = two(extra)
    assert not shown.of.divided
    assert shown.answer.startswith("32.0 KiB at the peak in 2 processes, shared memory counted for each: ")


def test_of_one_process_nothing_is_summed():
    assert two(SUMS, pids=(7,)).answer.startswith("16.0 KiB at the peak: ")


def test_the_first_line_has_a_part_in_its_own_unit_and_the_first_snapshot_is_not_the_beginning():
    script = Script()
    script.fault(10, ANON, APP)
    for at in (100, 200):
        script.snapshot(at, (ANON, 2, PAGE_EXCLUSIVE))
    trace = script.trace()
    from_disk = report_of(trace, at="start", chosen=Filter(hard=True))
    assert from_disk.answer.startswith("0 B of 8.0 KiB at the first snapshot (only from disk)")


@pytest.mark.parametrize("extra", ["x", {}, {**SUMS, "pids": "78"}, {**SUMS, "from_ns": True}, {**SUMS, "pids": []},
                                   {**SUMS, "to_ns": 1 << 70}])  # fmt: skip
def test_what_a_damaged_file_says_is_not_believed(extra):
    found = two(extra)
    assert read_sums(found.of.info) is None
    assert not found.of.divided


def test_the_second_line_says_how_many_processes_have_no_snapshot():
    script = Script()
    for pid in (8, 9, 10):
        script.batches.append(script.process(20, pid, PROCESS_EXEC, "worker"))
        script.lose(20, LOSS_EXECUTED, pid=pid)
        script.fault(30 + pid, ANON, SAVE, pid=pid)
    script.fault(10, ANON, SAVE)
    script.snapshot(100, (ANON, 1, PAGE_EXCLUSIVE))
    assert "3 processes without a snapshot" in script.trace().report(at="exit").completeness


def test_the_rows_are_a_table_for_other_libraries():
    script = Script()
    for page in range(6):
        script.fault(10 + page, ANON + page * PAGE, APP if page < 4 else SAVE, tid=8 if page == 5 else 0)
    script.snapshot(1000, (ANON, 6, PAGE_EXCLUSIVE))
    trace = script.trace()
    rows = trace.report().rows
    assert trace.report_table().to_numpy()["resident"].tolist() == [row["resident"] for row in rows]
    shown = trace.report(by=("thread", "line"), sort="faults")
    frame = pytest.importorskip("pyarrow").table(trace.report_table(by=("thread", "line"), sort="faults")).to_pylist()
    assert [row["label"] for row in frame] == [row.label for row in shown.rows]
    assert [(row["thread"].split()[1], row["resident"] // PAGE) for row in frame] == [
        ("(7)", 4),
        ("(7)", 1),
        ("(8)", 1),
    ]
    assert sum(row["private"] for row in frame) == 6 * PAGE
