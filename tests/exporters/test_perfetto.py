"""A trace for Perfetto holds what was recorded: its own trace processor answers by SQL."""

from pathlib import Path
from typing import Any

import pytest
from kit.blame_scripted import ANON, APP, FILE, PAGE, SAVE, Script, composition
from kit.perfetto import query

from wstrace.errors import UsageError
from wstrace.schema import FAULT_MAJOR, MARK, PAGE_FILE, PROCESS_FORK, PROCESS_NAME
from wstrace.testing import batch_of
from wstrace.trace import Trace

ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def scripted() -> Script:
    script = Script()
    script.batches += [script.process(2, 9, PROCESS_FORK, "other"), script.process(3, 7, PROCESS_NAME, "app")]
    script.batches.append(batch_of(MARK, script.strings, time_ns=[12, 30], pid=7, tid=7, text=["warm", "go\x1b[31m"]))
    for n in range(6):
        script.fault(10 + n, ANON + n * PAGE, stack=APP if n < 4 else SAVE, tid=7 + n % 2)
    for n in range(3):
        script.fault(30 + n, FILE + n * PAGE, pid=9, flags=FAULT_MAJOR * (n == 0), native=[(3, 64), (4, 32)])
    script.snapshot(100, (ANON, 3, 0), (ANON + 5 * PAGE, 1, 0), (ANON + 30 * PAGE, 1, 0))
    script.snapshot(101, (FILE, 3, PAGE_FILE), pid=9, number=1)
    return script


def wanted(trace: Trace, folder: Path, *sql: str, **options: object) -> list[Any]:
    """The answers of the trace processor, which has found no error in the file."""
    path = folder / "x.pftrace"
    trace.save(str(path), force=True, **options)
    errors, *answers = query(path, ERRORS, *sql)
    assert errors == []
    return answers


QUERIES = {
    "categories": "select category, count(*) from slice where category in ('fault', 'from disk') group by 1 order by 1",
    "threads": "select t.tid, p.pid, p.name, count(*) from slice s join thread_track k on s.track_id = k.id "
    "join thread t using (utid) join process p using (upid) group by 1, 2 order by 1",
    "from disk": "select s.name, s.ts, extract_arg(s.arg_set_id, 'debug.page'), extract_arg(s.arg_set_id, 'debug.by') "
    "from slice s where category = 'from disk'",
    "counters": "select t.name, p.pid, max(c.value) from counter c join process_counter_track t on c.track_id = t.id "
    "join process p using (upid) group by 1, 2",
    "samples": "select t.tid, count(*) from perf_sample s join thread t using (utid) group by 1 order by 1",
    "frames": "select f.name, m.name, c.depth, count(s.id) from perf_sample s "
    "join stack_profile_callsite c on s.callsite_id = c.id join stack_profile_frame f on c.frame_id = f.id "
    "join stack_profile_mapping m on f.mapping = m.id group by 1, 2, 3 order by 1",
    "sampled": "select t.name, max(c.value) from counter c join counter_track t on c.track_id = t.id "
    "where t.name like 'page%'",
    "marks": "select name, ts, dur from slice where category = 'mark' order by 2",
    "about": "select s.name from slice s join track t on s.track_id = t.id where t.name = 'wstrace'",
}


@pytest.fixture(scope="module")
def trace():
    return scripted().trace()


@pytest.fixture(scope="module")
def reported(trace, tmp_path_factory):
    answers = wanted(trace, tmp_path_factory.mktemp("perfetto"), *QUERIES.values())
    return dict(zip(QUERIES, answers, strict=True))


def test_faults_are_instants_of_their_threads(reported):
    assert reported["categories"] == [["fault", 8], ["from disk", 1]]
    assert reported["threads"] == [[7, 7, "app", 3], [8, 7, "app", 3], [9, 9, "other, worker 1 of 1", 3]]
    assert reported["from disk"] == [["libbig.so", 30, FILE, "own"]]


def test_the_last_values_of_the_counters_are_what_blame_says_is_resident(reported, trace):
    blame = composition(trace, "peak")
    expected = {(f"resident: {row.label}", row["resident"]) for row in blame.rows("line")}
    assert {(name, value) for name, _, value in reported["counters"]} == expected
    assert sum(value for _, _, value in reported["counters"]) == blame.rss
    assert reported["about"][0] == [trace.report(at="peak").answer]


def test_stacks_are_samples_from_the_outermost_frame_in(reported):
    assert reported["samples"] == [[7, 3], [8, 3], [9, 3]]
    assert reported["sampled"] == [["page-faults", 9]]
    assert reported["frames"] == [
        ["load_frame app.py:31", "/[python]", 1, 4],
        ["save app.py:40", "/[python]", 1, 2],
        ["tool+0x40", "/tool", 1, 3],
    ]


def test_marks_are_slices_up_to_the_next(reported):
    assert [mark[:2] for mark in reported["marks"]] == [["warm", 12], ["go\\x1b[31m", 30]]
    assert reported["marks"][0][2] == 18


def test_who_writes_it_is_reported_what_was_left_out(tmp_path):
    script = Script()
    for n in range(9):
        script.fault(10 + n, ANON + n * PAGE)
    shown = script.trace().save(str(tmp_path / "x.pftrace"), most=4)
    assert (shown, shown.note) == (4, "4 of 9 faults are shown, those from disk first; --option most=9 shows all")
    whole = script.trace().save(str(tmp_path / "y.pftrace"))
    assert (whole, whole.note) == (9, "")


def test_it_says_what_the_trace_cannot_show(tmp_path):
    script = Script()
    for n in range(9):
        script.fault(10 + n, ANON + n * PAGE)
    trace = script.trace()
    about, counters, samples = wanted(
        trace, tmp_path, "select s.name from slice s join track t on s.track_id = t.id where t.name = 'wstrace'",
        "select t.name, max(c.value) from counter c join counter_track t on c.track_id = t.id group by 1",
        "select count(*) from perf_sample", most=4,
    )  # fmt: skip
    reported = [name for (name,) in about]
    assert "4 of 9 faults are shown" in reported
    assert any(name.startswith("no resident pages are in the trace") for name in reported)
    assert any(name.startswith("no stacks are in the trace") for name in reported)
    assert [value for _, value in counters] == [9 * PAGE]
    assert samples == [[0]]
    with pytest.raises(UsageError, match="there is no mark 'warm'"):
        trace.save(str(tmp_path / "y.pftrace"), at="warm")
    assert not (tmp_path / "y.pftrace").exists()
