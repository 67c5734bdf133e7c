"""Imports of a real program: what it measures of itself around them, and CPython's own tree of them."""

import json
import os
import re
import subprocess
import sys
import zipfile

import pytest
from kit.recorded_run import record

from wstrace.analysis.imports import imports

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux gives stacks"),
    pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="eBPF needs root"),
]

MIB = 1 << 20
#: file -> what it holds; each `kept` is so many MiB of fresh memory
FILES = {
    "outer.py": "kept = bytearray(4 << 20)\nimport inner\nmore = bytearray(1 << 20)\n",
    "inner.py": "kept = bytearray(3 << 20)\n",
    "pkg/__init__.py": "kept = bytearray(2 << 20)\n",
    "pkg/deep/__init__.py": "from . import leaf, other\n",
    "pkg/deep/leaf.py": "kept = bytearray(3 << 20)\n",
    "pkg/deep/other.py": "kept = bytearray(5 << 20)\n",
    "space/mod.py": "kept = bytearray(2 << 20)\n",
    "dynamic.py": "kept = bytearray(6 << 20)\n",
    "late.py": "kept = bytearray(2 << 20)\n",
    "again.py": "kept = globals().get('kept', []) + [bytearray(2 << 20)]\n",
    "one.py": "import time\nstarted.append(1)\nwhile len(started) < 2: time.sleep(0.01)\nkept = bytearray(4 << 20)\n",
    "two.py": "import time\nstarted.append(2)\nwhile len(started) < 2: time.sleep(0.01)\nkept = bytearray(7 << 20)\n",
}
PROGRAM = """
import builtins, importlib, json, os, sys, threading, time
builtins.started = []
sys.path.append("archive.zip")

def rss():
    with open("/proc/self/smaps_rollup", "rb") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(b"Rss:"))

rss(), time.sleep(0.3)  # until the tracer has found the interpreter
took = {}

def measured(name, load):
    before = rss()
    load()
    took[name] = rss() - before

def plain():
    import outer

def lazily():
    import late

def at_once():
    threads = [threading.Thread(target=importlib.import_module, args=(name,)) for name in ("one", "two")]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

def packaged(): import pkg.deep
def spaced(): import space.mod
def native(): import decimal
def zipped(): import zipped

measured("outer", plain)
measured("pkg.deep", packaged)
measured("space.mod", spaced)
measured("dynamic", lambda: importlib.import_module("dynamic"))
measured("late", lazily)
measured("again", lambda: importlib.reload(importlib.import_module("again")))
measured("decimal", native)
measured("zipped", zipped)
measured("threads", at_once)
rest = bytearray(8 << 20)
with open("took.json", "w") as file:
    json.dump(took, file)
sys.stderr.flush()
os._exit(0)  # with all that it has
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imports")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("zipped.py", "kept = bytearray(3 << 20)\n")
    (folder / "program.py").write_text(PROGRAM)
    return folder


@pytest.fixture(scope="module")
def shown(program):
    with record(program, [sys.executable, "program.py"]) as trace:
        if (level := trace.info.level_name) != "full":
            pytest.skip(f"level {level}")
        yield imports(trace, "exit"), trace.report(at="exit")


def rows(shown) -> dict[tuple[str, ...], int]:
    """path -> resident bytes with its own imports."""
    return {row.path: row.all["resident"] for row in shown[0].rows}


def test_each_import_brings_what_the_program_measures_around_it(program, shown):
    took = json.loads((program / "took.json").read_text())
    found = rows(shown)
    found["threads",] = found["one",] + found["two",]
    found["pkg.deep",] += found["pkg",]
    found["space.mod",] = found["mod",]
    for name, measured in took.items():
        assert abs(found[name,] - measured) <= 400 << 10, (name, found[name,], measured)


@pytest.mark.parametrize(
    ("path", "mib"),
    [
        ("outer", 5), ("outer > inner", 3), ("pkg", 2), ("pkg.deep > pkg.deep.leaf", 3),
        ("pkg.deep > pkg.deep.other", 5), ("dynamic", 6), ("late", 2), ("again", 4), ("one", 4), ("two", 7),
        ("zipped", 3), ("mod", 2),
    ],
)  # fmt: skip
def test_each_module_has_its_own_memory(shown, path, mib):
    own = {" > ".join(row.path): row["resident"] for row in shown[0].rows}
    assert mib * MIB <= own.get(path, 0) + (8 << 10), sorted(own)
    assert own[path] <= mib * MIB + (400 << 10)


def test_an_extension_module_is_named_and_below_what_imports_it(shown):
    if not any("_decimal" in row.label for row in shown[0].rows):
        import _decimal

        assert not hasattr(_decimal, "__file__"), "it is a library of its own, and is not shown"
        pytest.skip("_decimal is built in here")
    assert rows(shown)["decimal", "_decimal"] > 100 << 10


def test_the_sum_is_that_of_the_run(shown):
    found, blame = shown
    assert (
        sum(row["resident"] for row in found.rows)
        == blame.total["resident"]
        == sum(row.all["resident"] for row in found.rows if len(row.path) == 1)
    )
    assert sum(row["faults"] for row in found.rows) == blame.total["faults"]
    assert rows(shown)["(not importing)",] >= 8 * MIB
    assert not [row.path for row in found.rows if row.label.startswith("(imports that")]


def test_parents_are_those_of_importtime(program, shown):
    """import_module and reload do not come by the way that importtime counts: their modules are at the left there.

    There a package is below the module that it was imported for, which begins earlier; here it stands beside it.
    """
    done = subprocess.run([sys.executable, "-X", "importtime", "program.py"], cwd=program, capture_output=True,
                          text=True, check=True, timeout=60)  # fmt: skip
    parents = {}
    waiting = {}
    for line in done.stderr.splitlines():  # each module stands behind those that it imported
        if match := re.match(r"import time:\s+\d+ \|\s+\d+ \|( +)(\S+)$", line):
            depth = len(match[1]) // 2
            for child in waiting.pop(depth + 1, []):
                parents[child] = match[2]
            waiting.setdefault(depth, []).append(match[2])
    for child, parent in list(parents.items()):
        while parent is not None and f"{parent}.".startswith(f"{child}."):
            parent = parents.get(parent)
        parents[child] = parent
    names = {*parents, *(name for several in waiting.values() for name in several)}
    compared = 0
    for row in shown[0].rows:
        if row.label in names and parents.get(row.label) and len(row.path) > 1 and not row.path[-2].startswith("("):
            assert row.path[-2] == parents[row.label], (row.path, parents[row.label])
            compared += 1
        elif row.label in names and row.is_module and len(row.path) == 1:
            assert not parents.get(row.label), (row.path, parents.get(row.label))
    assert compared >= 5
