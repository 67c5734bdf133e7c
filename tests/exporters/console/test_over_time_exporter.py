"""`run --over-time`: what grew is told at the end of a trace that is kept in no file."""

from __future__ import annotations

import pytest
from blame_scripted import ANON, APP, PAGE, Script

from wstrace.errors import UsageError
from wstrace.schema import PAGE_EXCLUSIVE
from wstrace.session import Session
from wstrace.table import Selection
from wstrace.testing import ScriptedSource
from wstrace_exporters.console.over_time import OverTimeExporter

SECOND = 10**9


def told(capsys, **options) -> list[str]:
    """What is printed of a process to which load_frame adds 256 pages a second."""
    script = Script()
    for second in range(4):
        for page in range(256 * second, 256 * (second + 1)):
            script.fault(second * SECOND + 100 + page, ANON + page * PAGE, APP)
        script.snapshot((second + 1) * SECOND - 1000, (ANON, 256 * (second + 1), PAGE_EXCLUSIVE), number=second)
    trace = script.trace()
    exporter = OverTimeExporter(to="stdout", **options)
    session = Session(
        sources=[ScriptedSource(trace.read(Selection()))], exporters=[exporter], enrichers=[], record=False
    )
    session.context.info.page_size, session.context.info.content_losses = PAGE, trace.info.content_losses
    with session:
        while not session.wait(0.05):
            pass
    return capsys.readouterr().out.splitlines()


def test_the_first_line_is_what_grew(capsys):
    lines = told(capsys)
    assert lines[0] == "+3.0 MiB in 3.0 s (1.0 MiB/s): load_frame app.py:31"
    assert sum(" s " in line and "MiB" in line for line in lines[1:]) == 4


def test_quiet_says_nothing_and_a_step_is_positive(capsys):
    assert told(capsys, quiet=True) == []
    with pytest.raises(UsageError, match="step is 0"):
        OverTimeExporter(step=0)
