"""`wstrace run --over-time` and `attach --over-time` on real programs."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: /proc/PID/pagemap")

GROW = """
import time
kept = []
def keep(n):
    kept.append(b"x" * n)
for _ in range(4):
    keep(4 << 20)
    time.sleep(0.3)
"""


def test_run_over_time_tells_what_grew_first(tmp_path, full_level, python_stacks):
    program = tmp_path / "grow.py"
    program.write_text(GROW)
    command = [sys.executable, "-m", "wstrace", "run", "--over-time", "0.3s", "--", sys.executable, str(program)]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr.splitlines()
    assert lines[0].startswith("+"), lines
    assert "keep grow.py:5" in lines[0]
    assert any(line.startswith("peak ") for line in lines), "the report follows"
