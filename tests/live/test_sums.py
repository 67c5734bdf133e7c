"""The sums of a forked family at its peak, against what its pages must be."""

import json
import os
import sys
from pathlib import Path

import pytest
from kit.command_line import wstrace

pytestmark = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="page frames are root's")
FAMILY = """
import os, sys, time
data = bytearray(b"x") * (40 << 20)
for _ in range(3):
    if not os.fork():
        own = bytearray(b"y") * (10 << 20); time.sleep(float(sys.argv[1])); os._exit(0)
for _ in range(3): os.wait()
"""
MIB = 1 << 20


def test_a_page_that_four_have_counts_four_times_in_parts_or_once(tmp_path):
    path = str(tmp_path / "x.wst")
    for seconds in (2, 20, 50):  # snapshots are 20 times their time apart: on a slow machine the next one is late
        Path(path).unlink(missing_ok=True)
        done = wstrace("report", "-o", path, "--json", "--", sys.executable, "-c", FAMILY, seconds)
        shown = json.loads(done.stdout)
        total = shown["total"]
        if total.get("rss", 0) >= (4 * 40 + 3 * 10) * MIB and "shared memory divided" in shown["answer"]:
            break  # on a busy machine the frames of all pages are read later than two seconds: `counted for each`
    own = 40 + 3 * 10
    assert total["rss"] >= (4 * 40 + 3 * 10) * MIB
    # libraries are some of it
    assert own * MIB <= total["resident"] <= (own + 40) * MIB
    report = wstrace("report", path, "--by", "process").stdout.splitlines()[0]
    assert "in 4 processes, shared memory divided: " in report
