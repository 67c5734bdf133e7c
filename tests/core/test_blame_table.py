"""The rows of a blame as a table for other libraries."""

from __future__ import annotations

import pytest
from blame_scripted import ANON, APP, PAGE, SAVE, Script, saved
from click.testing import CliRunner

from wstrace.schema import PAGE_EXCLUSIVE
from wstrace_exporters.console.commands.report import report


def script() -> Script:
    """Four pages by one line, and two by another."""
    made = Script()
    for page in range(6):
        made.fault(10 + page, ANON + page * PAGE, APP if page < 4 else SAVE)
    made.snapshot(1000, (ANON, 6, PAGE_EXCLUSIVE))
    return made


def test_the_rows_are_a_table_for_other_libraries():
    trace = script().trace()
    rows = trace.blame().rows("line")
    array = trace.blame_table("line").to_numpy()
    assert array["resident"].tolist() == [row.resident for row in rows]
    assert array["first_ns"].tolist() == [row.first_ns for row in rows]
    frame = pytest.importorskip("pyarrow").table(trace.blame_table("line", "kind", sort="faults")).to_pylist()
    told = trace.blame().rows("line", "kind", sort="faults")
    assert [row["label"] for row in frame] == [row.whole for row in told]
    assert [row["kind"] for row in frame] == [row.kind for row in told]
    assert sum(row["private"] for row in frame) == 6 * PAGE
    assert not len(trace.blame_table(kinds=["stack"]))


def test_threads_are_a_key(tmp_path):
    made = script()
    made.fault(20, ANON + 6 * PAGE, SAVE, tid=8)
    made.snapshot(2000, (ANON, 7, PAGE_EXCLUSIVE), number=1)
    trace = made.trace()
    told = trace.blame(threads=True).rows("thread", "line")
    assert [(row.label.split()[1], row.resident // PAGE) for row in told] == [("(7)", 4), ("(7)", 2), ("(8)", 1)]
    assert trace.blame_table("thread").to_numpy()["resident"].tolist() == [6 * PAGE, PAGE]
    path = str(tmp_path / "x.wst")
    saved(trace, path)
    for command in (report,):
        done = CliRunner().invoke(command, [path, "--by", "thread,line"])
        assert done.exit_code == 0, done.output
        rows = [line for line in done.output.splitlines() if "(8)  save" in line]
        assert len(rows) == 1, done.output
