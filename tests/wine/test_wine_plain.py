"""Plain Wine, without the stand-in: its watch calls succeed and do nothing, and wstrace must find that out."""

import os
import sys

import pytest

pytestmark = pytest.mark.skipif(os.environ.get("WSTRACE_STANDIN") == "1", reason="only on Wine's own psapi.dll")


def test_doctor_says_that_the_watch_is_a_stub(command):
    code, said, _ = command("doctor")
    assert code == 0
    line = next(line for line in said.splitlines() if line.split()[:1] == ["page_faults"])
    assert "none" in line
    assert "stub" in line


def test_run_refuses_rather_than_write_an_empty_trace(command, tmp_path):
    code, _, said = command("run", "-o", tmp_path / "x.wst", "--", sys.executable, "-c", "pass")
    assert code == 122
    assert "stub" in said
    assert not (tmp_path / "x.wst").exists()
