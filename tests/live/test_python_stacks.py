"""The Python stack of every page fault, against targets that know which line touches which page."""

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kit.pythons import installed, named

from wstrace.schema import STACK_HOW

HERE = Path(__file__).parent
PYTHONS = installed()
#: a region's base page may have been another's before: a row of another tenant is earlier than the region's own first
KINDS = ("functions", "modules", "files", "tables", "reload", "classes")

pytestmark = pytest.mark.usefixtures("full_level", "python_stacks")


@pytest.fixture
def place():
    """place(python): a folder that it can reach, by our name and by its own."""
    made = []

    def make(python):
        made.append(tempfile.mkdtemp(dir=python.root + "/tmp" if python.root else None))
        for script in HERE.glob("python_*.py"):
            shutil.copy(script, made[-1])
        return Path(made[-1]), Path(made[-1].removeprefix(python.root))

    yield make
    for folder in made:
        shutil.rmtree(folder)


def wrong(trace: Any, regions: list[dict[str, Any]]) -> tuple[Counter[Any], int]:
    """(what was named instead of what touched a page, how often; the pages of all regions)."""
    sites, faults = named(trace)
    found = Counter()
    for region in regions:
        inside = (faults.va >= region["base"]) & (faults.va < region["base"] + region["pages"] * 4096)
        mine = faults[inside & (faults.pid == region["pid"])]
        # an address may have been another mapping's before: the last fault of a page is the region's
        last = {int(row.va) >> 12: row for row in mine}
        assert len(last) == region["pages"], region
        for row in last.values():
            seen = sites.get(int(row.stack), STACK_HOW[row.stack_how])
            right = [(function, region["line"], region["file"]) for function in region["function"].split("|")]
            if seen not in right or STACK_HOW[row.stack_how] != "exact":
                found[region["name"], seen, right[0]] += 1
    return found, sum(region["pages"] for region in regions)


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.label)
def test_every_fault_has_the_function_and_line_that_caused_it(trace, place, python):
    ours, its = place(python)
    traced = trace(python.command(its / "python_truth.py", its / "regions.json"), stacks="python")
    assert traced.context.targets[0].exit_code == 0
    found, pages = wrong(traced, json.loads((ours / "regions.json").read_text()))
    assert not found
    assert pages >= 35 * 40
    traced.assert_balanced()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.label)
def test_code_that_takes_the_place_of_freed_code_is_distinguished(trace, place, python, kind):
    ours, its = place(python)
    traced = trace(python.command(its / "python_adversary.py", its / "regions.json", kind), stacks="python")
    assert traced.context.targets[0].exit_code == 0
    found, pages = wrong(traced, json.loads((ours / "regions.json").read_text()))
    assert not found
    assert pages >= 100


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames are read of 3.11 on")
def test_code_that_attrs_and_jinja_generate_is_reported_by_its_own_lines(trace, tmp_path):
    pytest.importorskip("attr")
    pytest.importorskip("jinja2")
    out = tmp_path / "regions.json"
    traced = trace([sys.executable, HERE / "python_generated.py", out], stacks="python")
    assert traced.context.targets[0].exit_code == 0
    found, pages = wrong(traced, json.loads(out.read_text()))
    assert not found
    assert pages == 240


#: the interpreter calls `__init__` by itself once the call is specialized; in 3.13 there is a frame of its own between
_CONSTRUCTED = """
import mmap
class Page:
    def __init__(self, m, i):
        m[i * 4096] = 1
def make(m):
    for i in range(300): Page(m, i)
m = mmap.mmap(-1, 300 * 4096)
m.madvise(mmap.MADV_NOHUGEPAGE)
make(m)
"""


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.label)
def test_a_stack_through_a_constructor_is_whole(trace, python):
    traced = trace(python.command("-c", _CONSTRUCTED), stacks="python")
    sites, faults = named(traced)
    rows = zip(*(traced.column("call_site", one).tolist() for one in ("id", "parent", "flags")), strict=True)
    tree = {i: (parent, flags) for i, parent, flags in rows}
    inside = [int(stack) for stack in faults.stack.tolist() if sites.get(int(stack), ("",))[0] == "Page.__init__"]
    assert len(inside) >= 300
    for leaf in set(inside):
        names = []
        while leaf:
            names.append(sites[leaf][0])
            leaf, flags = tree[leaf]
            assert flags == 0
        assert [name for name in names if name != "__init__"] == ["Page.__init__", "make", "<module>"]


def test_two_pythons_on_one_cpu_are_distinguished(trace, place):
    """Of two versions where there are two: they take turns on the CPU, whose scratch memory the programs share."""
    pair = [python for python in PYTHONS if not python.root]
    cpu, made = min(os.sched_getaffinity(0)), [place(python) for python in (pair[0], pair[-1])]
    words = [shlex.join(python.command(its / "python_truth.py", its / "regions.json"))
             for python, (_, its) in zip((pair[0], pair[-1]), made, strict=True)]  # fmt: skip
    traced = trace(["taskset", "-c", cpu, "sh", "-c", f"{words[0]} & {words[1]} && wait $!"], stacks="python")
    assert traced.context.targets[0].exit_code == 0
    traced.assert_balanced()
    times = []
    for ours, _ in made:
        regions = json.loads((ours / "regions.json").read_text())
        found, pages = wrong(traced, regions)
        assert not found
        assert pages >= 35 * 40
        (pid,) = {region["pid"] for region in regions if region["name"] == "plain"}
        times.append(traced.faults(pid=pid).time_ns)
    assert times[0].min() < times[1].max(), "one ran after the other"
    assert times[1].min() < times[0].max(), "one ran after the other"


def test_each_version_is_there():
    """Which of them were proven: the tests above take those that are installed."""
    missing = {(3, minor) for minor in range(11, 15)} - {python.version for python in PYTHONS}
    if missing:
        pytest.skip(f"no CPython of {sorted(missing)}: tests/install-pythons, pyenv")
