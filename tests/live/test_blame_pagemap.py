"""Blame beside what programs see in their own pagemap: no page is another line's, and what is not known says so."""

import mmap
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from kit.blame_scripted import composition
from kit.pagemap_judge import found_by, judged, recorded
from kit.recorded_run import compiled

import wstrace
from wstrace.analysis.composition import Composition
from wstrace.analysis.losses import page_of
from wstrace.analysis.unshared import Unshared

HERE = Path(__file__).parent
N = 256  # pages of each region of the programs

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="page frames and losses of content need root on Linux"
)


def outermost_lines(of: Composition) -> list[str]:
    """Of each fault, in the order of the inputs, the line of its stack's outermost frame."""
    tree = of.inputs.names.tree
    parent, line = tree.column("parent").astype(np.intp), tree.column("line")
    at = tree.known(of.inputs.faults["stack"]).astype(np.intp)
    while (up := parent[at]).any():
        at = np.where(up > 0, up, at)
    return [str(number) for number in line[at].tolist()]


def test_each_page_of_a_python_program_is_its_lines(tmp_path, full_level, python_stacks):
    program = HERE / "pagemap_truth.py"
    path, truth, copies = recorded(tmp_path, sys.executable, str(program))
    with wstrace.open_trace(str(path)) as trace:
        (parent,) = trace.info.targets
        of = composition(trace, "exit", pids=[parent])
        assert of.past.lost == 0
        assert trace.info.final_snapshot == parent
        found = found_by(of, outermost_lines(of))
        shown = Unshared(composition(trace, at="exit"))
        copied = page_of(shown.of.history.faults.key[shown.copies])
    certain, estimated, wrong = judged(truth, found)
    lines = program.read_text().splitlines()
    loads_shared = str(lines.index("write(o, 4 * BIG)") + 1)
    unshared = sum(truth.get(page) == loads_shared for page in copied.tolist())
    assert certain.total() + estimated.total() > 0.97 * len(truth)
    reads_private = str(lines.index("read(p + 64 * PAGE, 1, among=(p, N))") + 1)
    assert certain[reads_private], "a page that faulted itself, in a private mapping that may be written"
    assert not wrong["0"], "what the kernel put together, or the device read, is no line's"
    nobodys = Counter(reason for page, (owner, _, reason) in found.items() if truth.get(page) == "0" and not owner)
    assert nobodys["no fault"] >= 2 * N, "MAP_POPULATE or mlock, and read by the device"
    assert copies == 4096, "5,120 faults"
    assert unshared == copies


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc (tests/install-peers)")
def test_each_page_of_a_c_program_is_its_functions(tmp_path, full_level):
    program = compiled(tmp_path, (HERE / "pagemap_truth.c").read_text(), "-I", str(HERE))
    path, truth, _ = recorded(tmp_path, str(program))
    with wstrace.open_trace(str(path)) as trace:
        (parent,) = trace.info.targets
        of = composition(trace, "exit", pids=[parent])
        assert of.past.lost == 0
        by_cell, labels = of.past.labels("function")
        assert trace.info.final_snapshot == parent
        found = found_by(of, [labels[one][0].function for one in by_cell[of.fault_cells].tolist()])
    certain, estimated, _ = judged(truth, found)
    assert certain["load"] + estimated["load"] == 2 * N + N // 2
    assert certain["touch_huge"] in (1, mmap.PAGESIZE // 8), "without or with huge pages"
    assert not certain["rewrite"]


#: Letters of steps in pagemap_random.c, and the most that may be given to another line, as an estimate.
MIXES = {"memory": ("wwwwwrrrdfuomke", 0.3), "perhaps": ("wwwwwrrrkeP", 0.8),
         "files": ("wwwwwrrrrptckeS", 0.5), "folios": ("wwwrrrrrrrrrptcDFF", 0.6),
         "populated": ("wwwwwrrrkelLRW", 0.8)}  # fmt: skip


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(
    "seeds", [range(1, 2), pytest.param(range(2, 30), marks=pytest.mark.long)], ids=["one", "many"]
)
def test_no_page_of_a_random_program_is_anothers_for_certain(mix, seeds, tmp_path, full_level):
    program = compiled(tmp_path, (HERE / "pagemap_random.c").read_text(), "-I", str(HERE))
    steps, most = MIXES[mix]
    for seed in seeds:
        path, truth, _ = recorded(tmp_path, str(program), extra=(str(seed), "200", steps))
        with wstrace.open_trace(str(path)) as trace:
            (parent,) = trace.info.targets
            of = composition(trace, "exit", pids=[parent])
            by_cell, labels = of.past.labels("function")
            assert trace.info.final_snapshot == parent
            found = found_by(of, [labels[one][0].function for one in by_cell[of.fault_cells].tolist()])
        _, _, wrong = judged(truth, found, random=True)
        assert wrong.total() <= most * len(truth), seed
