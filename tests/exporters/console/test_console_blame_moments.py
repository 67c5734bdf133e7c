"""The first lines of `wstrace report`: which moment it is, how much of the peak was seen, and who was not looked at."""

from __future__ import annotations

import dataclasses

import pytest
from blame_scripted import ANON, APP, PAGE, Script

from wstrace.analysis.blame.rows import as_dict
from wstrace.schema import LOSS_EXECUTED, PAGE_EXCLUSIVE, PROCESS_EXEC, PROCESS_EXIT
from wstrace.terminal.table import Styled, TextTable
from wstrace.trace_info import Level
from wstrace_exporters.console.blame_tables import parts


def child(script: Script, pid: int, began: int, ended: int, name: str = "z", pages: int = 3) -> None:
    """A process that brings pages and ends."""
    for time, event in ((began, PROCESS_EXEC), (ended, PROCESS_EXIT)):
        script.batches.append(script.process(time, pid, event, name))
    script.lose(began, LOSS_EXECUTED, pid=pid)
    for page in range(pages):
        script.fault(began + 1 + page, ANON + page * PAGE, APP, pid=pid)


def lines(trace, at="exit") -> list[str]:
    shown = parts(trace.blame(at=at), [], "resident", 10)
    return [part.text if isinstance(part, Styled) else part for part in shown if not isinstance(part, TextTable)]


def loaded(pages: int = 100) -> Script:
    """One process with so many pages at 1,000 ns."""
    script = Script()
    for page in range(pages):
        script.fault(10 + page, ANON + page * PAGE, APP)
    script.snapshot(1000, (ANON, pages, PAGE_EXCLUSIVE))
    return script


def test_the_exit_is_told_only_where_the_pages_are_those_of_the_exit():
    trace = loaded().trace()
    assert " resident at the last look: " in lines(trace)[0]
    trace.info.final_snapshot, trace.info.exit_code = 7, 0
    assert " resident at the exit: " in lines(trace)[0]
    assert as_dict(trace.blame(at="exit"), ["line"])["at"]["moment"] == "exit"
    script = loaded()
    child(script, 8, 200, 2000)
    script.snapshot(500, (ANON, 2, PAGE_EXCLUSIVE), pid=8, number=2)
    trace = script.trace()
    trace.info.final_snapshot, trace.info.exit_code = 7, 0
    assert " rss_sum at the last look at each in 2 processes: " in lines(trace)[0]
    assert as_dict(trace.blame(at="exit"), ["line"])["at"]["moment"] == "last look"


def test_processes_that_no_look_saw_are_named():
    script = loaded()
    for pid in (8, 9):
        child(script, pid, 200, 400)
    child(script, 10, 900, 2000, "cc1")
    trace = script.trace()
    assert "3 processes not looked at (2 z, cc1)" in lines(trace)[1]
    assert "1 process not looked at (cc1)" in lines(trace, "peak")[1], "z had ended by then"
    assert not lines(trace)[1].startswith("complete")
    report = as_dict(trace.blame(at="peak"), ["line"])
    assert report["at"]["not_looked_at"] == [10]


def test_a_peak_that_the_looks_missed_is_told_as_a_share():
    trace = loaded(100).trace()
    trace.info.usage = dataclasses.replace(trace.info.usage, peak_resident_bytes=200 * PAGE)
    how = "for the peak record with -s peak_snapshot"
    assert f"(composition of 400.0 of 800.0 KiB, 50%; {how})" in lines(trace, "peak")[0]
    sums = {"from_ns": 1000, "to_ns": 1000, "pids": [7, 8], "rss_sum": 1, "pss": 90 * PAGE, "distinct": None, "why": ""}
    script = loaded(100)
    script.snapshot(1000, (ANON, 20, PAGE_EXCLUSIVE), pid=8, number=1)
    several = script.trace()
    several.info.usage = dataclasses.replace(several.info.usage, peak_resident_bytes=150 * PAGE)
    several.info.extra["sums"] = sums
    assert lines(several, "peak")[0].startswith(
        f"360.0 KiB pss at the peak in 2 processes (rss_sum 480.0; composition of 480.0 of 600.0 KiB, 80%; {how}): "
    )
    trace.info.usage = dataclasses.replace(trace.info.usage, peak_resident_bytes=104 * PAGE)
    assert "(composition of 400.0 of 416.0 KiB, 96%)" in lines(trace, "peak")[0]
    trace.info.extra["peak_snapshot"] = {"time_ns": 1000, "bytes": 100 * PAGE, "largest": 160 * PAGE}
    assert "(composition of 400.0 of 640.0 KiB, 62%, not seen whole)" in lines(trace, "peak")[0], "of several together"


def test_what_the_records_lack_is_told_with_what_lifts_it():
    trace = loaded(3).trace()
    trace.info.lack("Python stacks: they need root; sudo wstrace ...")
    trace.info.level = Level("user", "faults taken by kernel code are not shown", "sudo sysctl x=1")
    assert lines(trace)[2:4] == [
        "level user: faults taken by kernel code are not shown; to lift it: sudo sysctl x=1",
        "without Python stacks: they need root; sudo wstrace ...",
    ]


def test_a_process_that_lives_was_not_looked_at_because_nobody_asked():
    script = Script()
    child(script, 8, 200, 2000)
    script.fault(400, ANON, APP)
    shown = parts(script.trace().blame(at="peak"), [], "resident", 10)
    assert (
        "16.0 KiB brought: 16.0 by load_frame app.py:31; no resident pages are in the trace: record with -s peak"
        in shown[0].text
    )


def test_a_cut_file_without_resident_pages_is_not_told_to_record_more():
    script = Script()
    script.fault(10, ANON, APP)
    trace = script.trace()
    trace.info.incomplete = "the file is cut"
    shown = parts(trace.blame(at="peak"), [], "resident", 10)
    assert shown[0].text.endswith("; no resident pages are in what is left of the trace")


@pytest.mark.parametrize("named", [True, False])
def test_without_resident_pages_the_table_is_of_what_was_brought(named):
    script = Script()
    for page in range(3):
        script.fault(10 + page, ANON + page * PAGE, APP)
    if named:
        script.batches.append(script.process(2000, 7, PROCESS_EXIT, "app"))
    trace = script.trace()
    shown = parts(trace.blame(at="peak"), [], "resident", 10)
    why = "no resident pages are in the trace: record with -s peak_snapshot, which looks at them while it runs"
    if named:
        why = "no resident pages are known: app (7) ended before its memory was looked at"
    assert shown[0].text == f"12.0 KiB brought: 12.0 by load_frame app.py:31; {why}", (
        "the answer first, then what it lacks"
    )
    table = next(part for part in shown if isinstance(part, TextTable))
    assert any("load_frame app.py:31" in str(cell) for cell in table.rows[0])
