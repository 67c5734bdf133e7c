"""What the first line of blame says, and how a trace that lacks records or rows is answered."""

from __future__ import annotations

import pytest
from blame_scripted import ANON, PAGE, SAVE, Script, saved
from click.testing import CliRunner

from wstrace.analysis.blame.words import answer
from wstrace.errors import OutputError, UsageError
from wstrace.schema import LOSS_EXECUTED, PAGE_EXCLUSIVE, PROCESS_EXEC
from wstrace_exporters.console import recorded
from wstrace_exporters.console.commands.report import report as command


def test_the_first_line_says_what_most_is_also_where_no_line_brought_it():
    """GIVEN more that was there before the trace than what came in it THEN the answer begins with it."""
    script = Script()
    del script.batches[1]  # the process did not begin in the trace
    script.snapshot(5, (ANON, 20, PAGE_EXCLUSIVE))
    script.fault(10, ANON + 20 * PAGE, SAVE)
    script.snapshot(100, (ANON, 21, PAGE_EXCLUSIVE), number=1)
    assert answer(script.blame()).endswith(": 80.0 (not known: before the trace), 4.0 by save app.py:40")


def test_the_first_line_says_of_how_many_processes_it_is():
    """GIVEN processes at the moment of which no look knows the pages THEN line 1 is not told as if of all."""
    script = Script()
    for pid in (8, 9, 10):
        script.batches.append(script.process(20, pid, PROCESS_EXEC, "worker"))
        script.lose(20, LOSS_EXECUTED, pid=pid)
        script.fault(30 + pid, ANON, SAVE, pid=pid)
    script.fault(10, ANON, SAVE)
    script.snapshot(100, (ANON, 1, PAGE_EXCLUSIVE))
    for pid in (9, 10):
        script.fault(200, ANON + PAGE, SAVE, pid=pid)
    assert answer(script.blame()).startswith("4.0 KiB resident at the last look in 1 of 4 processes: 4.0 by save")
    script.snapshot(101, (ANON, 1, PAGE_EXCLUSIVE), pid=8, number=1)
    assert " rss_sum at the last look at each in 2 of 4 processes: " in answer(script.blame())


def test_rows_that_were_not_asked_for_are_refused_with_what_asks_for_them():
    script = Script()
    script.fault(10, ANON, SAVE)
    script.snapshot(40, (ANON, 1, PAGE_EXCLUSIVE))
    trace = script.trace()
    with pytest.raises(UsageError, match=r"trace\.blame\(threads=True\)"):
        trace.blame().rows("thread")
    assert trace.blame(threads=True).rows("thread")


def test_of_a_recording_that_lacks_records_the_rest_is_told_and_no_file_that_is_gone(monkeypatch):
    """GIVEN a temporary trace that was written too slowly THEN its answer is shown, then what it lacks (123)."""

    def record(_target, _options, path, **_):
        script = Script()
        script.fault(10, ANON, SAVE)
        script.snapshot(40, (ANON, 1, PAGE_EXCLUSIVE))
        trace = script.trace()
        trace.info.incomplete = f"{path} lacks 7 records: the disk is slow"
        saved(trace, path)
        raise OutputError(f"{trace.info.incomplete}; what is there can be read: wstrace report {path}")

    monkeypatch.setattr(recorded, "_record", record)
    run = CliRunner().invoke(command, ["--", "true"])
    assert "4.0 save app.py:40" in run.stdout
    assert isinstance(run.exception, OutputError)
    assert str(run.exception) == (
        "the trace lacks 7 records: the disk is slow; "
        "run it again where less else runs, or record less: -s page_faults:period=7"
    )
