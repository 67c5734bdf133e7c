"""`wstrace run --over-time` and `attach --over-time` on real programs."""

import sys

import pytest
from kit.command_line import wstrace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: /proc/PID/pagemap")

GROW = """
import sys, time
kept = []
def keep(n):
    kept.append(b"x" * n)
for _ in range(4):
    keep(4 << 20)
    time.sleep(float(sys.argv[1]))
"""


def test_run_over_time_tells_what_grew_first(tmp_path, full_level, python_stacks):
    program = tmp_path / "grow.py"
    program.write_text(GROW)
    for seconds in (0.3, 1, 4):  # on a busy machine stacks and snapshots come late
        done = wstrace("run", "--over-time", f"{seconds}s", "--", sys.executable, program, seconds)
        lines = done.stderr.splitlines()
        if "keep grow.py:5" in lines[0]:
            break
    assert lines[0].startswith("+"), lines
    assert "keep grow.py:5" in lines[0]
    assert not any("MiB at the " in line for line in lines), "one answer"
    assert "0 lost" in lines[1]
