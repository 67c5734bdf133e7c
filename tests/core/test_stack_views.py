"""Faults by line, function, stack and package: each view holds the same faults; the own line is the right one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.stacks_scripted import Fault, Stacks

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.cube import Cube
from wstrace.analysis.dimensions import rows as rows_of
from wstrace.analysis.own import Origin, OwnRule, SourceFile, jit_function, module_origin, package_of
from wstrace.batch import Batch, Dictionary
from wstrace.schema import CALL_SITE, FRAME_CUT, FRAME_NATIVE, FRAME_PYTHON, FRAME_UNCHECKED, HOW_EXACT, PAGE_FAULT
from wstrace.testing import batch_of

LIB = "/usr/lib/python3.11"
APP, MAIN = ("parse", "/srv/app/leak.py", 12), ("<module>", "/srv/app/leak.py", 40)
LOADS = ("loads", f"{LIB}/json/__init__.py", 346)
FRAME = ("read", "/venv/lib/python3.11/site-packages/pandas/io.py", 7)
FROZEN = ("_load", "<frozen importlib._bootstrap>", 5)
STARTER = ("<module>", "/venv/bin/gunicorn", 8)


def counted(*faults: Fault) -> Cube:
    cube = Cube()
    for batch in Stacks(Dictionary()).batches(faults):
        cube.add(batch)
    return cube


def labels(cube: Cube, by: str) -> dict[str, int]:
    return {row.label: row.values["faults"] for row in rows_of(cube, (by,))}


@pytest.mark.parametrize(
    ("stack", "line", "package"),
    [
        ([APP, MAIN], "parse leak.py:12", "(own code)"),
        ([LOADS, APP, MAIN], "parse leak.py:12", "(own code)"),
        ([LOADS, FRAME, APP, MAIN], "parse leak.py:12", "pandas"),
        ([FRAME, STARTER], "(package pandas)", "pandas"),
        ([LOADS, FROZEN], "(standard library)", "(standard library)"),
        ([FROZEN], "(standard library)", "(standard library)"),
        ([("__init__", "<string>", 3), APP], "parse leak.py:12", "(own code)"),
        ([("work", "<string>", 3), ("<module>", "<string>", 9)], "work <string>:3", "(own code)"),
        (
            [("<module>", "<string>", 1), ("addsitedir", f"{LIB}/site.py", 3)],
            "(standard library)",
            "(standard library)",
        ),
        ([("root", "<template>", 1), FRAME], "(package pandas)", "pandas"),
        ([("f", "<ipython-input-1-ab>", 1), FRAME], "f <ipython-input-1-ab>:1", "(own code)"),
        ([("f", "<template>", 1)], "f <template>:1", "(no package)"),
        ([("f", "relative.py", 0)], "f relative.py", "(own code)"),
    ],
)
def test_the_own_line_and_the_package_of_a_stack(stack, line, package):
    counts = counted(Fault(python=stack))
    assert labels(counts, "line") == {line: 1}
    assert labels(counts, "package") == {package: 1}


def test_a_script_that_starts_a_package_is_not_the_users_own_and_one_with_functions_is():
    counts = counted(Fault(python=[STARTER, STARTER]), Fault(python=[FRAME, STARTER]))
    assert labels(counts, "line") == {"<module> /venv/bin/gunicorn:8": 1, "(package pandas)": 1}
    own = ("work", "/venv/bin/tool", 4)
    counts = counted(Fault(python=[FRAME, own, ("<module>", "/venv/bin/tool", 9)]))
    assert labels(counts, "line") == {"work tool:4": 1}
    spelled = (
        "venv/bin/gunicorn",
        "./venv/bin/gunicorn",
        "../venv/bin/gunicorn",
        "/me/../venv/bin/gunicorn",
        "/./venv/bin/gunicorn",
    )
    for relative in spelled:
        counts = counted(Fault(python=[FRAME, ("<module>", relative, 8)]))
        assert labels(counts, "line") == {"(package pandas)": 1}, "however it is spelled"
    counts = counted(Fault(python=[LOADS, ("<module>", "/home/me/bin/tool", 9)]))
    assert labels(counts, "line") == {"<module> tool:9": 1}, "no interpreter lies beside this folder"


@pytest.mark.parametrize(
    ("path", "origin", "package"),
    [
        ("/usr/lib/python3/dist-packages/six.py", Origin.PACKAGE, "six"),
        ("/x/site-packages/a/b/site-packages/c/d.py", Origin.PACKAGE, "c"),
        (r"C:\Py\Lib\site-packages\numpy\core.py", Origin.PACKAGE, "numpy"),
        ("/root/.pyenv/versions/3.13.0/lib/python3.13/json/decoder.py", Origin.LIBRARY, ""),
        ("/opt/lib64/python3.13t/abc.py", Origin.LIBRARY, ""),
        ("/usr/lib/python311.zip/os.py", Origin.LIBRARY, ""),
        ("/home/me/lib/python3.11-notes/x.py", Origin.OWN, ""),
        ("/home/me/mylib/python3.11/x.py", Origin.OWN, ""),
        ("<template>", Origin.GENERATED, ""),
        ("<stdin>", Origin.INTERACTIVE, ""),
        ("", Origin.NONE, ""),
    ],
)
def test_the_owner_of_a_file(path, origin, package):
    assert OwnRule().origins([SourceFile(path)]) == [(origin, package)]
    assert package_of(path) == package


def test_own_and_not_own_are_reported_by_path_and_the_deeper_one_decides(monkeypatch):
    monkeypatch.chdir("/srv")
    rule = OwnRule(own=["/venv/lib/python3.11/site-packages/pandas", "app/keep"], not_own=["app", "/srv/app/keep/not"])
    files = [
        FRAME[1],
        "/srv/app/leak.py",
        "/srv/app/keep/x.py",
        "/srv/app/keep/not/y.py",
        "app/keep/z.py",
        "/srv/apple.py",
    ]
    found = [origin for origin, _ in rule.origins(SourceFile(file) for file in files)]
    assert found == [Origin.OWN, Origin.PACKAGE, Origin.OWN, Origin.PACKAGE, Origin.OWN, Origin.OWN]


def test_a_package_of_a_cut_stack_says_that_the_own_line_may_be_missing():
    stacks = Stacks(Dictionary())
    stack = stacks.python([LOADS, FRAME], flags=FRAME_CUT)
    counts = Cube()
    counts.add(stacks.trees[FRAME_PYTHON].new_rows())
    counts.add(
        batch_of(PAGE_FAULT, stacks.strings, pid=1, tid=1, pc=1, va=1, flags=0, stack=stack, stack_how=HOW_EXACT)
    )
    assert labels(counts, "line") == {"(package pandas, stack cut)": 1}
    (stack_text,) = labels(counts, "stack")
    assert stack_text.endswith(" < [not kept]"), "a stack without its outer frames is not shown as a whole one"


def test_a_stack_is_shown_without_the_frames_of_the_import_system():
    system = [("_load", "<frozen importlib._bootstrap>", line) for line in (1, 2)]
    module = ("<module>", "/srv/app/x.py", 3)
    counts = counted(Fault(python=[system[0], module]), Fault(python=[system[1], module]), Fault(python=system))
    assert labels(counts, "stack") == {
        "<module> x.py:3": 2,
        " < ".join(f"_load {file}:{line}" for _, file, line in system): 1,
    }


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("JS:*makeRecords /srv/app/alloc.js:1:21", ("makeRecords", "/srv/app/alloc.js", Origin.OWN, "")),
        ("JS:~ /srv/app/alloc.js:1:1", ("(anonymous)", "/srv/app/alloc.js", Origin.OWN, "")),
        ("JS:*get x /srv/my app/a b.js:1:21", ("get x", "/srv/my app/a b.js", Origin.OWN, "")),
        ("JS:~ /srv/my app/alloc.js:1:1", ("(anonymous)", "/srv/my app/alloc.js", Origin.OWN, "")),
        ("JS:~f [eval]:1:1", ("f", "[eval]", Origin.OWN, "")),
        ("JS:~a b file:///srv/x.mjs:1:1", ("a b", "/srv/x.mjs", Origin.OWN, "")),
        ("JS:~Module._load node:internal/loader:10:2", ("Module._load", "node:internal/loader", Origin.NONE, "")),
        (
            "LazyCompile:~next /s/node_modules/@a/b/x.js:1:2",
            ("next", "/s/node_modules/@a/b/x.js", Origin.PACKAGE, "@a/b"),
        ),
        ("void Faulty.fill(int)", ("void Faulty.fill(int)", "", Origin.OWN, "")),
        ("boolean java.util.ArrayList.add(java.lang.Object)", (None, "", Origin.NONE, "")),
        ("Interpreter", (None, "", Origin.NONE, "")),
        ("Builtin:ArrayMap", (None, "", Origin.NONE, "")),
    ],
)
def test_what_a_runtime_calls_a_function_is_taken_apart(name, shown):
    assert jit_function(name, OwnRule()) == (shown[0] or name, *shown[1:])


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/srv/app/prog", (Origin.OWN, "")),
        ("/usr/local/bin/prog", (Origin.OWN, "")),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", (Origin.NONE, "")),
        ("/lib/x/libc.so.6", (Origin.NONE, "")),
        ("/usr/bin/redis-server", (Origin.PROGRAM, "")),
        ("/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus", (Origin.PROGRAM, "")),
        ("/usr/lib/libjemalloc.so.2 (deleted)", (Origin.NONE, "")),
        ("/usr/bin/python3.11", (Origin.RUNTIME, "")),
        ("/usr/lib/jvm/java-17-openjdk-amd64/bin/java", (Origin.RUNTIME, "")),
        ("/opt/node/bin/node", (Origin.RUNTIME, "")),
        ("/root/.pyenv/versions/3.12.1/lib/libpython3.12.so.1.0", (Origin.RUNTIME, "")),
        ("/venv/lib/python3.12/site-packages/numpy/core.so", (Origin.PACKAGE, "numpy")),
        ("[vdso]", (Origin.NONE, "")),
        ("[anon]", (Origin.GENERATED, "")),
        ("", (Origin.NONE, "")),
    ],
)
def test_the_owner_of_a_module(path, shown):
    assert module_origin(path, OwnRule()) == shown
    assert module_origin("/usr/bin/prog", OwnRule(own=["/usr/bin/prog"]))[0] == Origin.OWN


def test_two_files_of_one_name_are_two_rows():
    counts = counted(Fault(python=[("f", "/srv/a/x.py", 1)]), Fault(python=[("f", "/srv/b/x.py", 1)]))
    assert labels(counts, "line") == {"f a/x.py:1": 1, "f b/x.py:1": 1}
    assert labels(counts, "function") == {"f a/x.py": 1, "f b/x.py": 1}


def test_what_is_not_certain_is_never_reported_as_certain():
    stacks = Stacks(Dictionary())
    certain, doubtful = stacks.python([APP]), stacks.python([APP], flags=FRAME_UNCHECKED)
    rows = [(certain, HOW_EXACT), (doubtful, HOW_EXACT)]
    counts = Cube()
    for tree in stacks.trees.values():
        if batch := tree.new_rows():
            counts.add(batch)
    counts.add(batch_of(PAGE_FAULT, stacks.strings, pid=1, tid=1, pc=1, va=1, flags=[1, 0],
                        stack=[row[0] for row in rows], stack_how=[row[1] for row in rows]))  # fmt: skip
    for by in ("line", "function", "stack"):
        (name,) = {label.partition(" (")[0] for label in labels(counts, by)}
        assert labels(counts, by) == {name: 1, f"{name} (not checked)": 1}


def sites(**columns: list[int]) -> Batch:
    n = len(columns["id"])
    return batch_of(CALL_SITE, **{**dict.fromkeys(CALL_SITE.always, [0] * n), "kind": [FRAME_PYTHON] * n, **columns})


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=30), st.integers(1, 5))
@settings(max_examples=100)
def test_whatever_a_file_says_a_walk_ends_and_no_row_is_replaced(rows, pieces):
    tree, first = CallTree(), {}
    for part in np.array_split(np.array(rows), pieces):
        if len(part):
            tree.learn(sites(id=part[:, 0].tolist(), parent=part[:, 1].tolist(), line=(part[:, 1] + 1).tolist()))
    for own, parent in rows:
        if own:
            first.setdefault(own, parent)
    for own, parent in first.items():
        stack = tree.stack(own)
        assert stack[0] == own
        assert len(stack) == len(set(stack)) <= 12
        assert tree.column("line")[own] == parent + 1
    assert tree.stack(0) == []


def test_ids_past_the_limit_are_read_as_unknown():
    tree = CallTree()
    tree.learn(sites(id=[1, (1 << 32) - 1], parent=[0, 1]))
    assert (len(tree), len(tree.column("line")) < 10) == (1, True)
    assert tree.known(np.array([1, (1 << 32) - 1, 7], "<u4")).tolist() == [1, 0, 0]


def test_native_frames_stand_where_the_interpreters_are():
    from wstrace.analysis.frames import Frames
    from wstrace.schema import FRAME_INTERPRETER

    stacks = Stacks(Dictionary())
    native = stacks.trees[FRAME_NATIVE]
    leaf = 0
    for offset, flags in ((1, 0), (2, FRAME_INTERPRETER), (3, 0), (4, FRAME_INTERPRETER), (5, 0)):
        (leaf,) = native.add(leaf, kind=FRAME_NATIVE, offset=offset, flags=flags)
    two, three = stacks.python([APP, MAIN]), stacks.python([APP, APP, MAIN])
    tree = CallTree()
    for one in stacks.trees.values():
        tree.learn(one.new_rows())
    frames = Frames(tree, OwnRule())
    shown = [frame.offset or frame.function for frame in frames.interleaved(two, int(leaf))]
    assert shown == [5, "parse", 3, "<module>", 1]
    shown = [frame.offset or frame.function for frame in frames.interleaved(three, int(leaf))]
    assert shown == [5, "parse", "parse", "<module>", 1]
    assert [frame.offset for frame in frames.interleaved(0, int(leaf))] == [5, 4, 3, 2, 1]
