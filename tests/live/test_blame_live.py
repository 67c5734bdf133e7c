"""Blame of real programs that bring known pages by known lines; totals as the kernel's of a stopped process."""

import json
import mmap
import os
import sys
from pathlib import Path

import pytest
from kit.blame_scripted import composition
from kit.command_line import answer
from kit.stopped_process import rollup, stopped

import wstrace
from wstrace.analysis.unshared import Unshared
from wstrace.session import Session

TRUTH = Path(__file__).with_name("blame_truth.py")
MIB = 1 << 20
#: each of the program's regions
REGION = 1024 * mmap.PAGESIZE

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="lines and losses of content need root on Linux"
)


@pytest.fixture(scope="module")
def truth(tmp_path_factory, full_level, python_stacks):
    path = tmp_path_factory.mktemp("blame") / "truth.wst"
    words = ("--by", "function", "--at", "exit", "-o", path, "--", sys.executable, TRUTH)
    report = json.loads(answer("report", "--json", *words))
    assert ", 0 lost" in report["completeness"]
    assert any(row["function"] == "load" for row in report["rows"]), "stacks are read from the program's first line on"
    return path


def test_each_line_has_what_it_brought_and_no_byte_that_was_there(truth):
    with wstrace.open_trace(str(truth)) as trace:
        (parent,) = trace.info.targets
        rows = composition(trace, at="exit", pids=[parent]).rows("function")
    found = {row.of("function"): row["resident"] for row in rows if row.of("file").endswith("blame_truth.py")}
    assert found["load"] == 2 * REGION, "of the block that was forked and rewritten, and of the one that was moved"
    assert found["bring_again"] == 2 * REGION, "what was discarded, and the block of the four"
    # between the two there may be a page of the interpreter's own
    assert found.get("rewrite", 0) <= 8 * mmap.PAGESIZE
    assert found.get("copy", 0) <= 8 * mmap.PAGESIZE
    unknown = sum(row["resident"] for row in rows if row.of("reason"))
    assert unknown <= 0.02 * sum(row["resident"] for row in rows)


def test_one_parent_and_four_children_copy_sixteen_mib(truth):
    with wstrace.open_trace(str(truth)) as trace:
        rows = {row.of("function"): row["copied"] for row in Unshared(composition(trace, at="exit")).rows("function")}
    assert 4 * REGION <= rows["copy"] <= 4 * REGION + 40 * mmap.PAGESIZE, "5,120 faults, 4,096 copies"


@pytest.mark.parametrize("by", ["line", "file", "kind", "package"])
def test_the_total_is_the_kernels_of_the_stopped_process(by):
    script = "kept = bytearray(9 << 20); m = anon(4 << 20); touch(m, 2 * PAGE); ready('go')"
    with stopped(script) as (pid, _):
        session = Session(pid, sources=["page_faults", "working_set:interval=0"], children=False)
        with session:
            session.wait(0.5)
        blame = composition(session.trace)
        kernel = rollup(pid)
    rows = blame.rows(by)
    assert sum(row["resident"] for row in rows) == blame.rss == kernel["Rss"]
    private = kernel["Private_Clean"] + kernel["Private_Dirty"]
    # what our own process has mapped too is shared while it looks
    assert abs(sum(row["private"] for row in rows) - private) <= MIB
    if by == "line":
        assert {row.whole for row in rows} == {"(not known: before the trace)"}
