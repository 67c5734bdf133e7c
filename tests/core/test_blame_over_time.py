"""Compositions of one trace over time: what grew, by whom, how fast; a timeline's figures are those of the rows."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from kit.blame_scripted import ANON, APP, FILE, IMPORT, PAGE, SAVE, Script, saved

from wstrace.analysis.compare import MOST, OverTime
from wstrace.analysis.timeline import Timeline
from wstrace.errors import UsageError
from wstrace.schema import FAULT_MAJOR, LOSS_UNMAPPED, PAGE_EXCLUSIVE, PAGE_FILE, PAGE_SHARED, PROCESS, PROCESS_EXIT
from wstrace.testing import batch_of
from wstrace_exporters.console.commands.report import report as command

SECOND = 10**9


def grown(seconds: int = 4, pages: int = 256) -> Script:
    """Each second load_frame brings as many pages; the pages of save are there from the start and go in the end."""
    script = Script()
    for page in range(64):
        script.fault(10 + page, ANON + (1 << 24) + page * PAGE, SAVE)
    for second in range(seconds + 1):
        for page in range(pages * second, pages * (second + 1)):
            script.fault(second * SECOND + 100 + page, ANON + page * PAGE, APP)
        there = [(ANON, pages * (second + 1), PAGE_EXCLUSIVE)]
        there += [(ANON + (1 << 24), 64, PAGE_EXCLUSIVE)] * (second < seconds)
        script.snapshot((second + 1) * SECOND - 1000, *there, number=second)
    script.lose(seconds * SECOND + 50, LOSS_UNMAPPED, start=ANON + (1 << 24), end=ANON + (1 << 25))
    return script


def test_who_holds_how_much_at_each_moment():
    shown = OverTime(grown().trace(), 1.0)
    assert [round(shown.seconds(at)) for at in range(len(shown.moments))] == [0, 1, 2, 3, 4]
    assert [moment.resident // PAGE for moment in shown.moments] == [320, 576, 832, 1088, 1280]
    for at, moment in enumerate(shown.moments):
        assert sum(row["resident"] for row in moment.rows) == moment.resident
        assert {row.label: row["resident"] // PAGE for row in moment.rows}["load_frame app.py:31"] == 256 * (at + 1)
    changes = {row.label: row["change"] // PAGE for row in shown.growth()}
    assert changes == {"load_frame app.py:31": 1024, "save app.py:40": -64}
    assert {row.label: row["change"] // PAGE for row in shown.growth(1, 2)}["load_frame app.py:31"] == 256


def test_a_wider_step_takes_the_last_snapshot_of_each():
    shown = OverTime(grown().trace(), 2.0)
    assert [moment.resident // PAGE for moment in shown.moments] == [320, 832, 1280]
    assert len(OverTime(grown(3 * MOST, 1).trace(), 0.1).moments) <= MOST
    with pytest.raises(UsageError, match="above 0"):
        OverTime(grown().trace(), 0)


def test_a_process_that_has_ended_holds_nothing():
    script = Script()
    script.fault(10, ANON, APP)
    script.fault(11, ANON, SAVE, pid=8)
    for second in range(3):
        script.snapshot(second * SECOND + 100, (ANON, 1, PAGE_EXCLUSIVE), number=second)
    script.snapshot(200, (ANON, 1, PAGE_EXCLUSIVE), pid=8, number=9)
    script.batches.append(batch_of(PROCESS, script.strings, time_ns=SECOND + 500_000, pid=8, ppid=1, tid=8,
                                   event=PROCESS_EXIT, name="child", code=0))  # fmt: skip
    shown = OverTime(script.trace(), 1.0)
    assert [moment.resident // PAGE for moment in shown.moments] == [2, 2, 1]


def test_without_snapshots_there_are_no_moments():
    script = Script()
    script.fault(10, ANON, APP)
    shown = OverTime(script.trace(), 1.0)
    assert shown.moments == []
    assert shown.report().as_dict()["moments"] == []


def test_the_command_says_what_grew_first(tmp_path):
    path = str(tmp_path / "x.wst")
    saved(grown().trace(), path)
    text = CliRunner().invoke(command, [path, "--over-time", "1s"], catch_exceptions=False).output
    lines = text.splitlines()
    assert lines[0] == "+3.8 MiB in 4.0 s (960.0 KiB/s), by first touch: load_frame app.py:31"
    rows = [line.split() for line in lines[4:9]]
    assert [row[2] for row in rows] == ["1.2", "2.2", "3.2", "4.2", "5.0"]
    assert "load_frame app.py:31" in lines[5]
    report = json.loads(
        CliRunner().invoke(command, [path, "--over-time", "1s", "--json"], catch_exceptions=False).output
    )
    assert [moment["resident"] // PAGE for moment in report["moments"]] == [320, 576, 832, 1088, 1280]
    assert report["rows"][0]["change"] == 1024 * PAGE


def test_the_exit_of_a_command_is_no_moment_of_its_growth():
    """GIVEN a snapshot that was taken after the command had freed all THEN growth is shown up to the one before."""
    script = grown()
    script.snapshot(6 * SECOND, (ANON, 1, PAGE_EXCLUSIVE), number=99)
    trace = script.trace()
    trace.info.final_snapshot, trace.info.exit_code = 7, 0
    assert OverTime(trace, 1.0).moments[-1].resident == 1280 * PAGE
    trace.info.exit_code = None  # it runs on: the trace has ended, not the command
    assert OverTime(trace, 1.0).moments[-1].resident == PAGE


VIEWS = ("line", "function", "file", "package", "kind", "process", "cgroup", "thread")


def traced(begin: int = 0) -> Script:
    """4 pages at 1 s, of which one is gone at the end; 2 at 2 s; one from disk at 3 s with 3 around it, 1 by nobody."""
    script = Script()
    for page in range(4):
        script.fault(begin + SECOND + page, ANON + page * PAGE, APP)
    for page in range(8, 10):
        script.fault(begin + 2 * SECOND + page, ANON + page * PAGE, IMPORT)
    script.fault(begin + 3 * SECOND, FILE + 5 * PAGE, SAVE, flags=FAULT_MAJOR)
    script.lose(begin + 4 * SECOND, LOSS_UNMAPPED, start=ANON + 3 * PAGE, end=ANON + 4 * PAGE)
    script.snapshot(begin + 5 * SECOND, (ANON, 3, PAGE_EXCLUSIVE), (ANON + 8 * PAGE, 3, PAGE_EXCLUSIVE),
                    (FILE + 4 * PAGE, 4, PAGE_FILE | PAGE_SHARED))  # fmt: skip
    return script


@pytest.mark.parametrize("view", VIEWS)
def test_all_times_together_are_the_rows(view):
    shown = traced().blame()
    over = Timeline(shown, np.arange(0, 7, dtype=np.uint64) * np.uint64(SECOND)).by(view)
    rows = {row.whole: row for row in shown.rows(view)}
    for at, row in enumerate(over.rows):
        whole = rows.pop(row.whole, None)
        figures = [over.faults[at].sum(), over.from_disk[at].sum(), over.brought[at].sum() + over.untimed[at],
                   over.resident[at].sum() + over.untimed[at]]  # fmt: skip
        expected = [whole[name] for name in ("faults", "from_disk", "brought", "resident")] if whole else [0, 0, 0, 0]
        assert figures == expected
    assert not rows


def test_what_came_at_none_of_the_times_is_distinguished():
    over = Timeline(traced().blame(), np.arange(3, dtype=np.uint64)).by("kind")
    assert (over.faults.sum(), over.untimed.sum()) == (0, 10 * PAGE)
