"""The Python stack of every page fault, against targets that know which line touches which page."""

import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from kit.pythons import frames, installed, judged

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


def assert_right(trace: Any, out: Path, least: int) -> list[dict[str, Any]]:
    """Every page of the regions that a program wrote has what touched it. Returns the regions."""
    assert trace.context.targets[0].exit_code == 0
    regions = json.loads(out.read_text())
    pages = sum(region["pages"] for region in regions)
    assert judged(trace, regions) == (pages, {}, {})
    assert pages >= least
    return regions


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.label)
def test_every_fault_has_the_function_and_line_that_caused_it(trace, place, python):
    ours, its = place(python)
    traced = trace(python.command(its / "python_truth.py", its / "regions.json"), stacks="python")
    assert_right(traced, ours / "regions.json", 35 * 40)
    traced.assert_balanced()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.label)
def test_code_that_takes_the_place_of_freed_code_is_distinguished(trace, place, python, kind):
    ours, its = place(python)
    traced = trace(python.command(its / "python_adversary.py", its / "regions.json", kind), stacks="python")
    assert_right(traced, ours / "regions.json", 100)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames are read of 3.11 on")
def test_code_that_attrs_and_jinja_generate_is_reported_by_its_own_lines(trace, tmp_path):
    pytest.importorskip("attr")
    pytest.importorskip("jinja2")
    out = tmp_path / "regions.json"
    traced = trace([sys.executable, HERE / "python_generated.py", out], stacks="python")
    assert_right(traced, out, 240)


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
    found = frames(traced)
    inside = [stack for stack in traced.column("page_fault", "stack").tolist()
              if stack and found[stack][0][0] == "Page.__init__"]  # fmt: skip
    assert len(inside) >= 300
    for stack in set(inside):
        whole = [("Page.__init__", 0), ("make", 0), ("<module>", 0)]
        assert [frame for frame in found[stack] if frame != ("__init__", 0)] == whole


def test_two_pythons_on_one_cpu_are_distinguished(trace, place):
    """Of two versions where there are two: they take turns on the CPU, whose scratch memory the programs share."""
    pair = [python for python in PYTHONS if not python.root]
    cpu, made = min(os.sched_getaffinity(0)), [place(python) for python in (pair[0], pair[-1])]
    words = [shlex.join(python.command(its / "python_truth.py", its / "regions.json"))
             for python, (_, its) in zip((pair[0], pair[-1]), made, strict=True)]  # fmt: skip
    traced = trace(["taskset", "-c", cpu, "sh", "-c", f"{words[0]} & {words[1]} && wait $!"], stacks="python")
    traced.assert_balanced()
    times = []
    for ours, _ in made:
        regions = assert_right(traced, ours / "regions.json", 35 * 40)
        (pid,) = {region["pid"] for region in regions if region["name"] == "plain"}
        times.append(traced.faults(pid=pid).time_ns)
    assert times[0].min() < times[1].max(), "one ran after the other"
    assert times[1].min() < times[0].max(), "one ran after the other"


def test_each_version_is_there():
    """Which of them were proven: the tests above take those that are installed."""
    missing = {(3, minor) for minor in range(11, 15)} - {python.version for python in PYTHONS}
    if missing:
        pytest.skip(f"no CPython of {sorted(missing)}: tests/install-pythons, pyenv")
