"""The Python stack of every page fault: the true one, whatever is lost and whoever traces beside us."""

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.other_tracers import BPFTRACE, after, beside
from kit.pythons import frames, installed, judged
from kit.recorded_run import compiled

from wstrace.schema import HOW_EXACT, HOW_LOST, HOW_NOT_READABLE, STACK_HOW
from wstrace_plugins.page_faults.linux.python_stacks import decoder

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


#: Python that C calls, again and again: from 3.12 on, the interpreter has a frame of its own on the C stack for each.
#: How much of that stack a call takes differs by what calls, and so where in a page these frames stand.
_THROUGH_C = """
import ctypes, functools, json, mmap, random, sys
PAGES = 400
m = mmap.mmap(-1, PAGES * 4096)
m.madvise(mmap.MADV_NOHUGEPAGE)
def by_max(ways, page): return max([0], key=lambda _: go(ways, page))
def by_sorted(ways, page): return sorted([0], key=lambda _: go(ways, page))[0]
def by_map(ways, page): return [*map(lambda _: go(ways, page), [0])][0]
def by_reduce(ways, page): return functools.reduce(lambda *_: go(ways, page), [0, 0])
def by_next(ways, page): return next(go(ways, page) for _ in [0])
def by_itself(ways, page): return go(ways, page)
def go(ways, page):
    if ways: return ways[0](ways[1:], page)
    m[page * 4096] = 1
WAYS = by_max, by_sorted, by_map, by_reduce, by_next, by_itself
random.seed(1)
taken = [random.choices(WAYS, k=random.randrange(38)) for _ in range(PAGES)]
for page, ways in enumerate(taken): go(ways, page)
def names(way):
    if way is by_itself: return [way.__name__, "go"]
    return [way.__name__ + ".<locals>." + ("<genexpr>" if way is by_next else "<lambda>"), way.__name__, "go"]
stacks = [["go", *sum(map(names, reversed(ways)), []), "<module>"] for ways in taken]
with open(sys.argv[1], "w") as out:
    json.dump([ctypes.addressof(ctypes.c_char.from_buffer(m)), stacks], out)
"""


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.label)
def test_a_stack_through_calls_from_c_is_whole(trace, place, python):
    ours, its = place(python)
    traced = trace(python.command("-c", _THROUGH_C, its / "stacks.json"), stacks="python")
    base, stacks = json.loads((ours / "stacks.json").read_text())
    found = frames(traced)
    faults = zip(*(traced.column("page_fault", name).tolist() for name in ("va", "stack")), strict=True)
    inside = {(va - base) // 4096: stack for va, stack in faults}
    assert [[name for name, _ in found[inside[page]]] for page in range(len(stacks))] == stacks


_DEEP_THEN_SHALLOW = """
def down(n):
    if n: return down(n - 1)
    m = mmap.mmap(-1, 4096)
    m[0] = 1
import mmap
for n in (400, 1) * 4: down(n)
"""


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.label)
def test_a_shallow_stack_after_a_deep_one_is_whole(trace, python):
    traced = trace(
        ["taskset", "-c", min(os.sched_getaffinity(0)), *python.command("-c", _DEEP_THEN_SHALLOW)], stacks="python"
    )
    found = frames(traced)
    stacks = [[name for name, _ in found[stack]] for stack in traced.column("page_fault", "stack").tolist() if stack]
    down = [names for names in stacks if names[0] == "down"]
    assert all(names in (["down"] * 128, ["down"] * (len(names) - 1) + ["<module>"]) for names in down)
    assert [names for names in down if len(names) in (3, 128)][-2:] == [["down"] * 128, ["down", "down", "<module>"]]


#: one of several programs of the same size, which all may stand at the same addresses
_TOUCH = """
def f{n}():
    m = mmap.mmap(-1, 409600)
    for i in range(0, 409600, 4096): m[i] = 1
import mmap
f{n}()
"""
_ONE_PID = """
import os, sys
def fork_as(pid):
    while True:
        os.pwrite(9, str(pid - 1).encode(), 0)
        child = os.fork()
        if not child and os.getpid() != pid: os._exit(0)
        if child in (0, pid): return child
        os.waitpid(child, 0)
pid = os.getpid() + (500 if os.getpid() < 16384 else -500)  # below pid_max
for n in range(6):
    if not fork_as(pid):
        exec(sys.argv[1].format(n=n), {})
        os._exit(0)
    os.waitpid(pid, 0)
"""
_ONE_AFTER_THE_OTHER = """
import sys
try: import _interpreters as interpreters
except ImportError: import _xxsubinterpreters as interpreters
for n in range(6):
    one = interpreters.create()
    assert not interpreters.run_string(one, sys.argv[1].format(n=n))
    interpreters.destroy(one)
"""


@pytest.mark.parametrize("program", [_ONE_PID, _ONE_AFTER_THE_OTHER], ids=["pid", "interpreter"])
@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.label)
def test_what_has_the_pid_or_the_place_of_an_ended_one_is_distinguished(trace, python, program):
    words = shlex.join(["taskset", "-c", str(min(os.sched_getaffinity(0))), *python.command("-c", program, _TOUCH)])
    traced = trace(["bash", "-c", f"exec 9<>/proc/sys/kernel/ns_last_pid {words}"], stacks="python")
    assert traced.context.targets[0].exit_code == 0
    found = frames(traced)
    names = Counter(found[stack][0][0] for stack in traced.column("page_fault", "stack").tolist() if stack)
    assert {name: n >= 100 for name, n in names.items() if name in [f"f{n}" for n in range(6)]} == {
        f"f{n}": True for n in range(6)
    }


def test_code_that_finds_no_room_is_reported_again(trace, monkeypatch):
    """Processes report their code objects one after the other: what those that have ended reported is forgotten."""
    monkeypatch.setattr(decoder, "MOST_BYTES", 1 << 20)
    python = shlex.quote(sys.executable)
    traced = trace(
        ["sh", "-c", f"for i in 1 2 3 4 5 6 7 8; do {python} -c 'import json, subprocess'; done"], stacks="python"
    )
    how = traced.column("page_fault", "stack_how")
    exact, whole = Counter(traced.column("page_fault", "pid")[how == HOW_EXACT].tolist()), 400
    assert len([n for n in exact.values() if n > whole]) == 8
    assert np.isin(how, (HOW_LOST, HOW_NOT_READABLE)).sum() < len(how) // 50  # of a busy machine


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


def truth(
    trace: Any, folder: Path, pages: int = 100, before: Sequence[str] = (), **options: Any
) -> tuple[Any, int, int]:
    """(the trace of the truth target, its pages with the right stack, those with a reason); none has a wrong one."""
    out = folder / "regions.json"
    traced = trace([*before, sys.executable, HERE / "python_truth.py", out, pages], stacks="python", **options)
    assert traced.context.targets[0].exit_code == 0
    right, wrong, reasons = judged(traced, json.loads(out.read_text()))
    assert not wrong
    assert "no Python frame" not in reasons
    return traced, right, reasons.total()


def test_as_many_records_as_without_stacks(trace, touch):
    counts = {}
    for stacks in ("none", "python"):
        traced = trace([touch, 20000], stacks=stacks)
        traced.assert_balanced()
        counts[stacks] = len(traced.faults())
        assert counts[stacks] == traced.ledger("counted")
    assert abs(counts["none"] - counts["python"]) <= 20  # the C library's own faults vary


def test_rings_of_a_page_lose_records_and_give_no_wrong_stack(trace, tmp_path):
    right = 0
    for _ in range(4):  # how much of it is lost is the machine's
        traced, shown, _ = truth(trace, tmp_path, 200, ring_bytes=4096, poll_ms=100)
        assert traced.ledger("lost_kernel") > 1000
        assert traced.ledger("unaccounted") == 0
        traced.assert_balanced()
        right += shown
        if right > 50:
            return
    raise AssertionError(f"too few of the recorded faults have their stack: {right}")


#: the whole machine, in the folder of the test
OTHERS = {
    "perf -g": "perf record -a -g -e page-faults -c 1 -o {folder}/perf.data",
    "perf dwarf": "perf record -a --call-graph=dwarf -e page-faults -c 7 -o {folder}/perf.data",
    "perf -d": "perf record -a -d -e minor-faults -c 1 -o {folder}/perf.data",
    "bpftrace": shlex.join(BPFTRACE).replace("{", "{{").replace("}", "}}"),
}


@pytest.mark.parametrize("first", ["ours", "other"])
@pytest.mark.parametrize("other", OTHERS)
def test_beside_another_tracer_begun_before_or_after_ours(trace, tmp_path, other, first):
    """The kernel makes our records longer, and shares one time among all events of a fault."""
    if shutil.which(other.split()[0]) is None:
        pytest.skip(f"needs {other.split()[0]} (tests/install-peers)")
    command = OTHERS[other].format(folder=tmp_path)
    if first == "other":
        with beside(*shlex.split(command)):
            traced, right, unknown = truth(trace, tmp_path, 40)
    else:
        traced, right, unknown = truth(trace, tmp_path, 40, before=after(*shlex.split(command)))
    traced.assert_balanced(others=True)
    lost = traced.ledger("lost_kernel") + traced.ledger("foreign_clock") + traced.ledger("unaccounted")
    assert (right > 1000) or lost, (right, unknown)


def test_without_a_stack_is_counted_by_reason(trace, tmp_path):
    """What is no Python program lacks none; of what is, or says so, each fault without one is counted."""
    old = compiled(tmp_path, "char _PyRuntime[1 << 16];\nint main(void) { return 0; }\n", "-rdynamic")
    traced = trace(["sh", "-c", f"true; {old}; true"], stacks="python")
    hows = Counter(STACK_HOW[how] for how in traced.column("page_fault", "stack_how").tolist())
    rows = {who: n for stage, who, n in traced.context.ledger.rows() if stage == "without_stack"}
    assert hows["no Python frame"] > 50
    assert hows["interpreter not known"] > 5
    lacking = hows.keys() - {"no Python frame"}
    assert rows == {reason: hows[reason] for reason in lacking}
