"""The first line of a recording: the size, what was gained before, whose it is, and what of that is not known."""

import pytest
from kit.blame_scripted import ANON, APP, FILE, PAGE, SAVE, Script, composition

from wstrace.analysis.filter import Filter
from wstrace.analysis.recording import first_lines, moment_of
from wstrace.analysis.report import Report
from wstrace.analysis.report import report as report_of
from wstrace.firing import ENDED, KILLED, REACHED, Firing, Recording
from wstrace.schema import (
    FAULT_MAJOR,
    FAULT_WRITE,
    KIND_FILE,
    KIND_SHIFT,
    LOSS_EVENTS,
    LOSS_EXECUTED,
    LOSS_FORKED,
    MAP_READ,
    MAPPING,
    PAGE_EXCLUSIVE,
    PAGE_FILE,
    PAGE_SHARED,
    PROCESS_EXEC,
    PROCESS_FORK,
)
from wstrace.testing import batch_of

SECOND = 1_000_000_000
MIB = 256  # pages


def recording(how: str, *, looked_at: int | None = 90, pages: int = 5 * MIB):
    """APP brought 2 MiB before what is shown, then 3 MiB at 50 s, SAVE 1 MiB at 60 s and 1 MiB at 95 s; 100 s: fired.

    looked_at: when 6 MiB were seen, in s.
    """
    script = Script()
    for first, n, second, stack in ((0, 2, 5, APP), (2, 3, 50, APP), (5, 1, 60, SAVE), (6, 1, 95, SAVE)):
        for page in range(first * MIB, (first + n) * MIB):
            script.fault(second * SECOND + page, ANON + page * PAGE, stack)
    if looked_at is not None:
        script.snapshot(looked_at * SECOND, (ANON, pages, PAGE_EXCLUSIVE))
    trace = script.trace()
    trace.info.content_losses = LOSS_EVENTS[1:]
    sizes = ((1, 1 << 20), (10 * SECOND, 2 << 20), (60 * SECOND, 5 << 20))
    firing = Firing(100 * SECOND, "rss=7MiB", "api", how, 7 << 20, last_look_ns=(looked_at or 0) * SECOND, sizes=sizes)
    trace.info.extra["recording"] = firing.to_facts(10 * SECOND, {"page_fault": 1234, "process": 1}, 90.0)
    return trace


def shown(trace) -> list[str]:
    fired = Recording.of(trace.info.extra)
    return first_lines(composition(trace, at=moment_of(fired), pids=fired.pids), fired)


def test_a_size_that_was_reached_names_the_lines_of_the_pages_that_are_there():
    trace = recording(REACHED, looked_at=100, pages=7 * MIB)
    line, kept = shown(trace)
    assert line == "api: at 7.0 MiB; +5.0 in the last 90 s: 3.0 by load_frame app.py:31, 2.0 by save app.py:40"
    assert kept == "trigger rss=7MiB; kept 90 s before it, 1,235 older records were let go"


def test_a_kill_has_the_last_snapshot_and_what_came_after_it():
    line, _ = shown(recording(KILLED, pages=6 * MIB))
    assert line == (
        "api: killed at 7.0 MiB; +5.0 in the last 90 s: 3.0 by load_frame app.py:31, 1.0 by save app.py:40"
        " (at the last snapshot, 10 s before, at 6.0; brought after it 1.0 by save app.py:40)"
    )


def test_what_a_cgroup_is_charged_for_and_what_is_resident_are_named():
    """Its size has the page cache and kernel memory, and pages of libraries are charged to who brought them first."""
    trace = recording(KILLED, pages=6 * MIB)
    trace.info.extra["recording"] |= {"cgroup": "/pod/api"}
    line, _ = shown(trace)
    assert line == (
        "api: killed at 7.0 MiB charged; +5.0 in the last 90 s: resident 3.0 by load_frame app.py:31,"
        " 1.0 by save app.py:40 (at the last snapshot, 10 s before, at 6.0 resident;"
        " brought after it 1.0 by save app.py:40)"
    )


def test_what_no_snapshot_saw_is_reported_as_brought():
    line, _ = shown(recording(ENDED, looked_at=None))
    assert line == (
        "api: ended at 7.0 MiB; +5.0 in the last 90 s: brought, which may have been given back: "
        "3.0 by load_frame app.py:31, 2.0 by save app.py:40"
    )


def test_what_is_gone_at_the_look_is_no_bodys():
    line, _ = shown(recording(REACHED, looked_at=100, pages=2 * MIB + 1))
    assert line == "api: at 7.0 MiB; +5.0 in the last 90 s: 0.0 by load_frame app.py:31"


def test_a_full_ring_says_that_it_kept_less():
    trace = recording(REACHED)
    trace.info.extra["recording"]["asked_seconds"] = 600.0
    assert "kept 90 s of 10 min 00 s: their size was at its limit before it" in shown(trace)[1]


@pytest.mark.parametrize("name", ["{0}{", "\x1b[2J"])
def test_names_from_outside_are_text(name):
    trace = recording(REACHED)
    trace.info.extra["recording"]["who"] = name
    assert shown(trace)[0].startswith(name if name.isprintable() else r"\x1b[2J: at 7.0 MiB")


def test_of_several_cgroups_only_its_own_processes_count():
    trace = recording(ENDED, looked_at=None)
    trace.info.extra["recording"]["pids"] = [8]
    assert shown(trace)[0].endswith(": no fault was recorded then, and its memory was not looked at")
    trace.info.extra["recording"]["pids"] = [7, 8]
    assert "3.0 by load_frame app.py:31" in shown(trace)[0]


def two(shares: bool = False, pids: tuple[int, ...] = (7, 8), at: str = "peak") -> Report:
    """Two processes with 2 pages of their own each, and 2 that both have since a fork."""
    script = Script()
    for page in range(4):
        script.fault(10 + page, ANON + page * PAGE, APP if page < 2 else SAVE)
    script.batches.append(script.process(20, 8, PROCESS_FORK, "child"))
    script.lose(20, LOSS_FORKED, pid=8, other=7)
    for page in range(2):
        script.fault(30 + page, ANON + page * PAGE, APP, pid=8, flags=FAULT_WRITE)
    known = {"shares": [1, 2]} if shares else {}
    for number, pid in enumerate(pids):
        script.snapshot(100 + number, (ANON, 2, PAGE_EXCLUSIVE), (ANON + 2 * PAGE, 2, PAGE_SHARED), pid=pid, **known)
    return script.trace().report(at=at)


@pytest.mark.parametrize("shares", [False, True])
def test_each_page_counts_once(shares):
    shown = two(shares)
    assert shown.answer.startswith("24.0 KiB at the peak in 2 processes, shared memory divided: ")
    assert (shown.total["resident"], shown.total["rss"]) == (6 * PAGE, 8 * PAGE)
    rows = {row.label: row["pss"] for row in shown.rows}
    assert not shares or (rows["load_frame app.py:31"], rows["save app.py:40"]) == (4 * PAGE, 2 * PAGE)


def test_the_pages_of_a_file_are_one_wherever_they_are_mapped_and_others_only_at_one_address():
    script, shared = Script(), PAGE_FILE | PAGE_SHARED
    script.fault(10, ANON, APP)
    elsewhere = FILE - (1 << 30)
    script.batches.append(batch_of(MAPPING, script.strings, id=90, time_ns=1, pid=8, offset=PAGE,
                                   start=elsewhere + PAGE, end=elsewhere + 9 * PAGE, dev=1, ino=5, build_id=0,
                                   file="/usr/lib/libbig.so", flags=MAP_READ | KIND_FILE << KIND_SHIFT))  # fmt: skip
    script.snapshot(100, (FILE, 3, shared), (ANON, 2, PAGE_SHARED))
    script.snapshot(101, (elsewhere + PAGE, 3, shared), (ANON + PAGE, 2, PAGE_SHARED), pid=8, file=90)
    shown = script.trace().report()
    assert shown.total["resident"] == (4 + 3) * PAGE
    by = script.trace().report(by=("process",)).rows
    assert sorted(row["resident"] for row in by) == [(1 + 2 / 2 + 1 + 1 / 2) * PAGE] * 2


def test_what_a_child_copied_and_shared_with_its_own_child_is_a_page_beside_the_one_of_its_parent():
    script = Script()
    script.fault(10, ANON, APP)
    for at, pid, parent in ((20, 8, 7), (40, 9, 8), (50, 10, 7)):
        script.batches.append(script.process(at, pid, PROCESS_FORK, "child"))
        script.lose(at, LOSS_FORKED, pid=pid, other=parent)
    script.fault(30, ANON, SAVE, pid=8, flags=FAULT_WRITE)
    for pid in (7, 8, 9, 10):
        script.snapshot(100 + pid, (ANON, 1, PAGE_SHARED), pid=pid)
    shown = script.trace().report(at="exit")
    assert {row.label: row["resident"] for row in shown.rows} == {
        "load_frame app.py:31": PAGE, "save app.py:40": PAGE}  # fmt: skip


def test_of_one_process_nothing_is_summed():
    assert two(pids=(7,)).answer.startswith("16.0 KiB at the peak: ")


def test_the_first_line_has_a_part_in_its_own_unit_and_the_first_snapshot_is_not_the_beginning():
    script = Script()
    script.fault(10, ANON, APP)
    for at in (100, 200):
        script.snapshot(at, (ANON, 2, PAGE_EXCLUSIVE))
    trace = script.trace()
    from_disk = report_of(trace, at="start", chosen=Filter(hard=True))
    assert from_disk.answer.startswith("0 B of 8.0 KiB at the first snapshot (only from disk)")


def test_the_second_line_says_how_many_processes_have_no_snapshot():
    script = Script()
    for pid in (8, 9, 10):
        script.batches.append(script.process(20, pid, PROCESS_EXEC, "worker"))
        script.lose(20, LOSS_EXECUTED, pid=pid)
        script.fault(30 + pid, ANON, SAVE, pid=pid)
    script.fault(10, ANON, SAVE)
    script.snapshot(100, (ANON, 1, PAGE_EXCLUSIVE))
    assert "3 processes without a snapshot" in script.trace().report(at="exit").completeness


def test_where_a_process_was_not_seen_several_have_at_least_so_much():
    script = Script()
    for pid in (7, 8, 9):
        script.fault(10 + pid, ANON + pid * PAGE, SAVE, pid=pid)
    script.snapshot(100, (ANON, 2, PAGE_EXCLUSIVE))
    script.snapshot(101, (ANON, 2, PAGE_EXCLUSIVE), pid=8)
    assert script.trace().report(at="peak").answer.startswith("at least 16.0 KiB at the peak in 2 processes, shared")


def test_at_the_peak_of_many_processes_those_count_that_came_after_its_snapshot():
    script = Script()
    for pid in (7, 8):
        script.fault(10 + pid, ANON + pid * PAGE, SAVE, pid=pid)
        script.snapshot(100 + pid, (ANON, 2, PAGE_EXCLUSIVE), pid=pid)
    trace = script.trace()
    for most, lacking in ((3, 0), (900, 898)):
        trace.info.extra["peak_snapshot"] = {"time_ns": 100, "bytes": 4 * PAGE, "largest": 4 * PAGE, "processes": most}
        shown = trace.report(at="peak")
        assert shown.answer.startswith("at least 16.0 KiB") == bool(lacking)
        assert ("898 processes without a snapshot" in shown.completeness) == bool(lacking)
    assert not trace.report(at="exit").answer.startswith("at least")


def test_a_fifth_of_a_page_is_whole_bytes_and_no_growth_has_no_sign():
    script = Script()
    script.fault(10, FILE, SAVE, flags=FAULT_MAJOR)
    for pid in range(7, 12):
        script.snapshot(100 + pid, (FILE, 1, PAGE_FILE | PAGE_SHARED), pid=pid)
    assert report_of(script.trace(), chosen=Filter(hard=True)).answer.startswith("819 B at the peak ")
    assert attached_to_two(pages=1).startswith("0 B in ")


def attached_to_two(*, born: bool = False, pages: int = 3) -> str:
    """Line 1 of two processes that were read 2 s after one another, again and again: 1 page each, then 7 has more."""
    script, second = Script(), 1_000_000_000
    if born:
        script.batches.append(script.process(second, 8, PROCESS_FORK, "worker"))
    for page in range(3):
        script.fault(6 * second + page, ANON + page * PAGE, SAVE)
    for number, (pid, n) in enumerate([(7, 1), (8, 1), (7, pages), (8, 1)], 1):
        script.snapshot(2 * second * number, (ANON, n, PAGE_EXCLUSIVE), pid=pid, number=number)
    trace = script.trace()
    trace.info.targets = (7,)
    return trace.report().answer


def test_the_first_snapshots_on_a_busy_machine_are_all_of_the_start():
    assert attached_to_two().startswith("+8.0 KiB in ")
    assert attached_to_two().endswith(", by first touch: 8.0 save app.py:40")
    assert attached_to_two(born=True).startswith("+12.0 KiB in "), "a process that was forked later is growth"


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
