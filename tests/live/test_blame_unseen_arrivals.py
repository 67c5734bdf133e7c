"""Blame of pages that arrive without a fault of the program's code: no function gets them by a guess."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from kit.blame_scripted import composition
from kit.pagemap_judge import found_by, judged, recorded
from kit.recorded_run import compiled

import wstrace

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="page frames need root on Linux"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc (tests/install-peers)"),
]


def test_what_the_kernel_a_device_or_another_task_brought_is_no_functions(tmp_path, full_level):
    program = compiled(tmp_path, (HERE / "unseen_arrivals.c").read_text(), "-I", str(HERE))
    path, truth, _ = recorded(tmp_path, str(program))
    with wstrace.open_trace(str(path)) as trace:
        (parent,) = trace.info.targets
        of = composition(trace, "exit", pids=[parent])
        by_cell, labels = of.past.labels("function")
        assert trace.info.final_snapshot == parent
        found = found_by(of, [labels[one][0].function for one in by_cell[of.fault_cells].tolist()])
    certain, estimated, _ = judged(truth, found, random=True)
    assert certain["fill"] == 16, "in memory that was mapped behind the last fork, beside what another task wrote"
    assert estimated["fill"] <= 16
    assert certain["load"] >= 256
    assert certain["0"] >= 256 + 128, "read by the device and not written since, and put together by the kernel"
