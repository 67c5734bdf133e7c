"""Faults told by line, function, stack and package: each view holds the same faults; the own line is the right one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stacks_scripted import Fault, Stacks

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.other_programs import OtherPrograms
from wstrace.analysis.own import Origin, OwnRule, SourceFile, package_of
from wstrace.analysis.own_native import jit_function, module_origin
from wstrace.analysis.stack_views import STACK_VIEWS
from wstrace.analysis.stacks import StackCounts
from wstrace.batch import Batch, Dictionary
from wstrace.schema import (
    CALL_SITE,
    FRAME_CUT,
    FRAME_NATIVE,
    FRAME_PYTHON,
    FRAME_UNCHECKED,
    HOW_EXACT,
    HOW_NOT_PYTHON,
    HOW_NOT_YET,
    HOW_OWN,
    PAGE_FAULT,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_FORK,
    STACK_HOW,
)
from wstrace.testing import batch_of

LIB = "/usr/lib/python3.11"
APP, MAIN = ("parse", "/srv/app/leak.py", 12), ("<module>", "/srv/app/leak.py", 40)
LOADS = ("loads", f"{LIB}/json/__init__.py", 346)
FRAME = ("read", "/venv/lib/python3.11/site-packages/pandas/io.py", 7)
FROZEN = ("_load", "<frozen importlib._bootstrap>", 5)
STARTER = ("<module>", "/venv/bin/gunicorn", 8)


def counted(*faults: Fault) -> StackCounts:
    counts = StackCounts()
    for batch in Stacks(Dictionary()).batches(faults):
        counts.add(batch)
    return counts


def labels(counts: StackCounts, by: str, rule: OwnRule | None = None, **options: bool) -> dict[str, int]:
    return {row.label: row.total for row in counts.table(by, rule, **options)}


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
        ([], "(no Python frame)", "(no Python frame)"),
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
    for relative in ("venv/bin/gunicorn", "./venv/bin/gunicorn", "../venv/bin/gunicorn"):
        counts = counted(Fault(python=[FRAME, ("<module>", relative, 8)]))
        assert labels(counts, "line") == {"(package pandas)": 1}, "a relative path beside an absolute one"
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
def test_whose_a_file_is(path, origin, package):
    assert OwnRule().origins([SourceFile(path)]) == [(origin, package)]
    assert package_of(path) == package


def test_own_and_not_own_are_told_by_path_and_the_deeper_one_decides(monkeypatch):
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
    counts = StackCounts()
    counts.add(stacks.trees[FRAME_PYTHON].new_rows())
    counts.add(batch_of(PAGE_FAULT, pid=1, tid=1, pc=1, va=1, flags=0, stack=stack, stack_how=HOW_EXACT))
    assert labels(counts, "line") == {"(package pandas, stack cut)": 1}
    (stack_text,) = labels(counts, "stack")
    assert stack_text.endswith(" < [not kept]"), "a stack without its outer frames is not shown as a whole one"


@pytest.mark.parametrize(
    ("name", "told"),
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
def test_what_a_runtime_calls_a_function_is_taken_apart(name, told):
    assert jit_function(name, OwnRule()) == (told[0] or name, *told[1:])


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/srv/app/prog", (Origin.OWN, "")),
        ("/usr/local/bin/prog", (Origin.OWN, "")),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", (Origin.NONE, "")),
        ("/lib/x/libc.so.6", (Origin.NONE, "")),
        ("/usr/bin/prog", (Origin.NONE, "")),
        ("/opt/node/bin/node", (Origin.NONE, "")),
        ("/root/.pyenv/versions/3.12.1/lib/libpython3.12.so.1.0", (Origin.NONE, "")),
        ("/venv/lib/python3.12/site-packages/numpy/core.so", (Origin.PACKAGE, "numpy")),
        ("[vdso]", (Origin.NONE, "")),
        ("", (Origin.NONE, "")),
    ],
)
def test_whose_a_module_is(path, told):
    assert module_origin(path, OwnRule()) == told
    assert module_origin("/usr/bin/prog", OwnRule(own=["/usr/bin/prog"]))[0] == Origin.OWN


def test_two_files_of_one_name_are_two_rows():
    counts = counted(Fault(python=[("f", "/srv/a/x.py", 1)]), Fault(python=[("f", "/srv/b/x.py", 1)]))
    assert labels(counts, "line") == {"f a/x.py:1": 1, "f b/x.py:1": 1}
    assert labels(counts, "function") == {"f a/x.py": 1, "f b/x.py": 1}


def test_what_is_not_certain_is_never_told_as_certain():
    stacks = Stacks(Dictionary())
    certain, doubtful = stacks.python([APP]), stacks.python([APP], flags=FRAME_UNCHECKED)
    rows = [(certain, HOW_EXACT), (doubtful, HOW_EXACT)]
    counts = StackCounts()
    for tree in stacks.trees.values():
        if batch := tree.new_rows():
            counts.add(batch)
    counts.add(batch_of(PAGE_FAULT, stacks.strings, pid=1, tid=1, pc=1, va=1, flags=[1, 0],
                        stack=[row[0] for row in rows], stack_how=[row[1] for row in rows]))  # fmt: skip
    for by in STACK_VIEWS[:3]:
        (name,) = {label.partition(" (")[0] for label in labels(counts, by)}
        assert labels(counts, by) == {
            name: 1,
            f"{name} (not checked)": 1,
        }
    assert [row.major for row in counts.table("line") if row.label == "parse leak.py:12"] == [1]


@pytest.mark.parametrize("how", [0, HOW_NOT_YET, len(STACK_HOW), 255])
def test_a_fault_without_a_stack_is_a_row_with_its_reason(how):
    counts = counted(Fault(python=None, how=how), Fault(python=None, how=how), Fault(python=[APP]))
    reason = "interpreter not known yet" if how == HOW_NOT_YET else "no stack, for an unknown reason"
    for by in STACK_VIEWS:
        assert labels(counts, by)[f"({reason})"] == 2


def test_what_is_no_python_is_told_by_program_where_there_are_several():
    """A process is what it executed last before the fault; a forked child is what its parent was."""
    counts, strings = StackCounts(), Dictionary()
    names = [strings.code(name) for name in ("bash", "true", "sleep")]
    faults = batch_of(PAGE_FAULT, strings, time_ns=[5, 15, 25, 35, 36], pid=[1, 1, 2, 2, 3], tid=1, pc=1, va=1,
                      flags=[0, 1, 0, 0, 0], stack=0, stack_how=HOW_NOT_PYTHON)  # fmt: skip
    counts.add(faults)
    assert labels(counts, "line") == {"(not a Python program)": 5}
    counts = StackCounts()
    bash, true, sleep = names
    counts.add(batch_of(PROCESS, strings, time_ns=[10, 20, 30, 31], pid=[1, 2, 2, 2], ppid=[0, 1, 1, 1],
                        tid=[1, 2, 2, 9], event=[PROCESS_EXEC, PROCESS_FORK, PROCESS_EXEC, PROCESS_FORK],
                        name=[bash, bash, true, sleep], code=-1))  # fmt: skip
    counts.add(faults)
    for by in STACK_VIEWS:
        assert labels(counts, by) == {"(not Python: bash)": 3, "(not Python: true)": 1, "(not a Python program)": 1}
    assert {row.label: row.major for row in counts.table("line")}["(not Python: bash)"] == 1


def test_a_stack_whose_rows_are_lost_is_told():
    counts = StackCounts()
    counts.add(batch_of(PAGE_FAULT, pid=1, tid=1, pc=1, va=1, flags=0, stack=[99], stack_how=[HOW_EXACT]))
    assert labels(counts, "line") == {"(the frames of its stack are not in the trace)": 1}


SOME = st.sampled_from([APP, MAIN, LOADS, FRAME, FROZEN, STARTER, ("__init__", "<string>", 3)])
FAULTS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.lists(SOME, max_size=6)),
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=4),
        st.integers(0, 3),
        st.integers(0, len(STACK_HOW)),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=60,
)


@given(FAULTS)
@settings(max_examples=60, deadline=None)
def test_every_view_holds_all_faults(rows):
    faults = [
        Fault(python, native, weight if native else 0, how, flags=major) for python, native, weight, how, major in rows
    ]
    counts = counted(*faults)
    for by in STACK_VIEWS:
        table = counts.table(by)
        assert sum(row.total for row in table) == len(faults)
        assert sum(row.major for row in table) == sum(fault.flags for fault in faults)
        assert sum(row.share for row in table) == pytest.approx(1)
    assert sum(n for _, n in counts.folded()) == len(faults)
    without = counted(*(fault._replace(native=None, weight=0) for fault in faults))
    for by in STACK_VIEWS:
        assert counts.table(by) == without.table(by), "what is told by Python never depends on native samples"


@given(FAULTS)
@settings(max_examples=60, deadline=None)
def test_samples_stand_for_their_weight_and_the_rest_is_a_row(rows):
    faults = [Fault(python, native, weight if native else 0) for python, native, weight, *_ in rows]
    counts = counted(*faults)
    for by in STACK_VIEWS:
        table = counts.table(by, native=True)
        assert sum(row.total for row in table) == len(faults)
        assert sum(row.samples for row in table) == sum(fault.weight > 0 for fault in faults)


def test_the_margin_of_samples_holds_the_truth_in_about_19_of_20_traces():
    rng, inside, rounds = np.random.default_rng(5), 0, 200
    for _ in range(rounds):
        hot = rng.random(2000) < 0.3
        sampled = np.arange(13, 2000, 20)
        stacks = Stacks(Dictionary())
        one, other = stacks.native([(1, 8)]), stacks.native([(1, 16)])
        counts = StackCounts()
        for tree in stacks.trees.values():
            if batch := tree.new_rows():
                counts.add(batch)
        native, weight = np.zeros(2000, "<u4"), np.zeros(2000, "<u4")
        native[sampled] = np.where(hot[sampled], one, other)
        weight[sampled] = 20
        base = batch_of(PAGE_FAULT, stacks.strings, pid=1, tid=1, pc=1, va=[4096] * 2000, flags=0)
        more = {"native_stack": native, "native_how": np.where(weight, HOW_OWN, 0).astype("u1"), "weight": weight}
        counts.add(base.with_columns(more))
        row = next(row for row in counts.table("line", native=True) if row.label.endswith("0x8"))
        assert row.margin > 0
        inside += abs(row.total - int(hot.sum())) <= row.margin
    assert 0.88 * rounds <= inside <= rounds


def test_callers_and_callees_of_the_innermost_call():
    helper, again = ("helper", "/srv/app/leak.py", 3), ("parse", "/srv/app/leak.py", 13)
    counts = counted(
        Fault(python=[helper, APP, MAIN]), Fault(python=[helper, APP, again, MAIN]), Fault(python=[APP, MAIN]),
        Fault(python=[MAIN]), Fault(python=[]),
    )  # fmt: skip
    rows = {row.label: row.total for row in counts.around("parse", callers=True)}
    assert rows == {"<module> leak.py:40": 2, "parse leak.py:13": 1}
    rows = {row.label: row.total for row in counts.around("parse", callers=False)}
    assert rows == {"helper leak.py:3": 2, "(itself)": 1}
    rows = {row.label: row.total for row in counts.around("<module>", callers=True)}
    assert rows == {"(nobody: it is the outermost frame)": 4}
    assert counts.around("nobody", callers=True) == []


def test_folded_stacks_begin_with_the_outermost_frame():
    counts = counted(Fault(python=[APP, MAIN]), Fault(python=[APP, MAIN]), Fault(python=[]))
    assert list(counts.folded()) == [(["<module> leak.py:40", "parse leak.py:12"], 2), (["(no Python frame)"], 1)]


def sites(**columns: list[int]) -> Batch:
    n = len(columns["id"])
    return batch_of(CALL_SITE, **{**dict.fromkeys(CALL_SITE.always, [0] * n), "kind": [FRAME_PYTHON] * n, **columns})


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=30), st.integers(1, 5))
@settings(max_examples=100, deadline=None)
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


def test_ids_past_the_limit_are_counted_and_read_as_unknown():
    tree = CallTree()
    tree.learn(sites(id=[1, (1 << 32) - 1], parent=[0, 1]))
    assert (tree.refused, len(tree), len(tree.column("line")) < 10) == (1, 1, True)
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
    told = [frame.offset or frame.function for frame in frames.interleaved(two, int(leaf))]
    assert told == [5, "parse", 3, "<module>", 1]
    told = [frame.offset or frame.function for frame in frames.interleaved(three, int(leaf))]
    assert told == [5, "parse", "parse", "<module>", 1]
    assert [frame.offset for frame in frames.interleaved(0, int(leaf))] == [5, 4, 3, 2, 1]


def test_faults_without_times_count_for_the_first_program_of_their_process() -> None:
    strings = Dictionary()
    began = batch_of(PROCESS, strings=strings, time_ns=[5], pid=7, ppid=1, tid=7, event=PROCESS_EXEC, name="bash")
    others = OtherPrograms()
    others.learn(began)
    others.count(
        batch_of(PAGE_FAULT, pid=7, tid=7, pc=1, va=[4096, 8192], flags=0), np.arange(2), np.zeros(2, np.int64)
    )
    assert others.rows() == {"bash": (2, 0)}
