"""Un-shared beside the page frames of programs: what no fault of its own had brought before the fork is copied, too."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from kit.blame_scripted import composition
from kit.command_line import answer
from kit.recorded_run import compiled

import wstrace
from wstrace.analysis.unshared import Unshared

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="page frames need root on Linux"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc (tests/install-peers)"),
]


@pytest.mark.parametrize("mode", ["kept", "rewritten"])
def test_copies_of_pages_that_came_without_a_fault_are_reported(mode, tmp_path, full_level):
    program = compiled(tmp_path, (HERE / "unshared_truth.c").read_text(), "-I", str(HERE))
    trace, said = tmp_path / "x.wst", tmp_path / "truth"
    answer("run", "-q", "-f", "-o", trace, "--", program, said, tmp_path, mode)
    truth = {key: int(value) for key, value in (line.split() for line in said.read_text().splitlines())}
    if not truth["huge"]:
        pytest.skip("this machine gives no transparent huge pages")
    with wstrace.open_trace(str(trace)) as read:
        shown = Unshared(composition(read, at="exit"))
        assert read.info.final_snapshot == read.info.targets[0]
        copied = shown.total // shown.of.page_size
    # pages of libc and the program, which the forks copied too, come on top
    areas = truth["copies"]
    if mode == "kept":
        assert areas == 200 + 64 + 1
        assert areas <= copied <= areas + 40
        assert not shown.at_least, "the snapshot shows that the huge page came whole"
    else:
        assert copied < areas
        assert shown.at_least
