"""Tables by control group of a trace that has none say so, and what records them."""

from __future__ import annotations

from typing import get_args

import pytest
from blame_scripted import ANON, APP, PAGE, Script, saved
from click.testing import CliRunner

from wstrace.schema import PAGE_EXCLUSIVE
from wstrace_exporters.console.commands.blame import blame
from wstrace_exporters.console.commands.report import report
from wstrace_exporters.console.console import ReportBy

WHY = "no control group is known: wstrace attach --cgroup, --container, --unit and -a record them, not run"
COMMANDS = {"report": report, "blame": blame}


def told(folder, command: str, by: str, *, cgroup: str = "", pages: bool = True) -> list[str]:
    script = Script()
    script.fault(10, ANON, APP)
    script.fault(11, ANON + PAGE, APP, cgroup=cgroup)
    if pages:
        script.snapshot(100, (ANON, 2, PAGE_EXCLUSIVE))
    saved(script.trace(), str(folder / "x.wst"))
    found = CliRunner().invoke(COMMANDS[command], [str(folder / "x.wst"), "--by", by], catch_exceptions=False)
    return found.output.splitlines()


@pytest.mark.parametrize("pages", [True, False])
@pytest.mark.parametrize("by", ["cgroup", "cgroup,process"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_trace_without_control_groups_says_so_and_what_records_them(command, by, pages, tmp_path):
    lines = told(tmp_path, command, by, pages=pages)
    assert lines.count(WHY) == 1
    assert any("[unknown]" in line for line in lines[lines.index(WHY) :]), "above the table"


@pytest.mark.parametrize("by", ["cgroup", "cgroup,process"])
@pytest.mark.parametrize("command", COMMANDS)
def test_where_one_is_known_nothing_is_said(command, by, tmp_path):
    lines = told(tmp_path, command, by, cgroup="/api/a")
    assert not any("no control group" in line for line in lines)
    assert any("/api/a" in line for line in lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_another_table_says_nothing_of_control_groups(command, tmp_path):
    assert not any("control group" in line for line in told(tmp_path, command, "file"))


def test_what_report_shows_a_program_that_is_being_traced_shows_too():
    """`-e console:by=cgroup`: but for `unshared`, which is a command of its own that reads a file."""
    (by,) = (option.type.choices for option in report.params if option.name == "by")
    assert {*get_args(ReportBy)} - {""} == {*by} - {"unshared"}
