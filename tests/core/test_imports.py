"""Imports of scripted traces: to which module a fault belongs, in which tree, and sums that are those of the run."""

import dataclasses
import json

import pytest
from click.testing import CliRunner
from kit.blame_scripted import ANON, APP, PACKAGES, PAGE, Script, saved

from wstrace.analysis.imports import imports
from wstrace.errors import UsageError
from wstrace.schema import PAGE_EXCLUSIVE
from wstrace_exporters.console.commands.imports import imports as command

_BOOT, _EXTERNAL = "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"
FINDING = [("_find_spec", _BOOT, 1080), ("_find_and_load_unlocked", _BOOT, 1140), ("_find_and_load", _BOOT, 1176)]
LOADING = [("_load_unlocked", _BOOT, 690), ("_find_and_load_unlocked", _BOOT, 1147), ("_find_and_load", _BOOT, 1176)]
READING = [("SourceLoader.get_code", _EXTERNAL, 1069), ("_LoaderBasics.exec_module", _EXTERNAL, 936), *LOADING]
CALLING = [("_call_with_frames_removed", _BOOT, 241)]
RUNNING = [*CALLING, ("_LoaderBasics.exec_module", _EXTERNAL, 940), *LOADING]
CREATING = [*CALLING, ("ExtensionFileLoader.create_module", _EXTERNAL, 1233), ("module_from_spec", _BOOT, 573),
            *LOADING]  # fmt: skip
PARENT = [*CALLING, ("_find_and_load_unlocked", _BOOT, 1128), ("_find_and_load", _BOOT, 1176)]
MAIN = [("<module>", "/srv/app/app.py", 3)]
PANDAS = [("<module>", f"{PACKAGES}/pandas/__init__.py", 1), *RUNNING, *MAIN]


def body(path: str, line: int = 1):
    return [("<module>", f"{PACKAGES}/{path}", line)]


def traced(*stacks, snapshot: bool = True) -> Script:
    """A page for each stack, one after the other."""
    script = Script()
    for number, stack in enumerate(stacks):
        script.fault(10 + number, ANON + number * PAGE, stack)
    if snapshot:
        script.snapshot(1000, (ANON, len(stacks), PAGE_EXCLUSIVE))
    return script


def tree(script: Script) -> dict[str, tuple[int, int]]:
    """`app > b`: pages of its own, with those of what it imported."""
    rows = imports(script.trace(), "exit").rows
    return {" > ".join(row.path): (row["resident"] // PAGE, row.all["resident"] // PAGE) for row in rows}


def test_a_page_belongs_to_the_innermost_module_that_was_imported():
    helper = [("make", f"{PACKAGES}/numpy/core.py", 5), *body("numpy/__init__.py"), *RUNNING, *PANDAS]
    found = tree(traced(APP, PANDAS, PANDAS, helper, [("bytes", f"{PACKAGES}/x.py", 1), *PANDAS]))
    assert found == {"(not importing)": (1, 1), "pandas": (3, 4), "pandas > numpy": (1, 1)}


def test_what_finds_and_reads_a_module_belongs_to_it():
    found = tree(traced([*FINDING, *MAIN], [*READING, *MAIN], PANDAS, [*READING, *PANDAS], PANDAS))
    assert found == {"pandas": (4, 5), "pandas > (imported at pandas/__init__.py:1)": (1, 1)}


def test_what_a_package_imports_without_a_name_is_that_packages_in_line_1():
    arrow = [*body("pyarrow/__init__.py", 59), *RUNNING, *PANDAS]
    answer = imports(traced([*CREATING, *arrow], [*CREATING, *arrow], PANDAS).trace(), "exit").answer
    assert answer.endswith(": 8.0 pyarrow, 4.0 pandas")


def test_of_several_modules_that_a_line_imports_what_comes_before_they_run_is_of_that_line():
    first, second = ([*body(name), *RUNNING, *MAIN] for name in ("one.py", "two.py"))
    found = tree(traced([*READING, *MAIN], first, [*READING, *MAIN], second, second))
    assert found == {"(imported at /srv/app/app.py:3)": (2, 2), "one": (1, 1), "two": (2, 2)}


def test_a_package_that_is_imported_for_its_module_stands_beside_it():
    module = [*body("pkg/deep/mod.py"), *RUNNING]
    above = [*FINDING, *PARENT, *PARENT, *MAIN]
    found = tree(traced(above, [*body("pkg/deep/__init__.py"), *RUNNING, *PARENT, *MAIN], [*module, *MAIN]))
    assert found == {"(imported at /srv/app/app.py:3)": (1, 1), "pkg.deep": (1, 1), "pkg.deep.mod": (1, 1)}


def test_a_module_that_is_loaded_again_or_by_hand_is_imported():
    again = [*body("late.py"), *CALLING, ("exec_module", _EXTERNAL, 940), ("_exec", _BOOT, 621),
             ("reload", "/usr/lib/python3.11/importlib/__init__.py", 169), ("work", "/srv/app/app.py", 9),
             *MAIN]  # fmt: skip
    assert tree(traced(again, APP)) == {"(not importing)": (1, 1), "late": (1, 1)}


def test_an_extension_module_is_named_by_its_file():
    script = Script()
    library = script.map_file("/venv/lib/python3.11/site-packages/fast/_core.cpython-311-x86_64-linux-gnu.so")
    here = [*CREATING, *MAIN]
    for number, va in enumerate([ANON, library, ANON + PAGE, ANON + 2 * PAGE]):
        script.fault(10 + number, va, [*FINDING, *MAIN] if not number else here)
    script.fault(20, ANON + 3 * PAGE, [*body("numpy/__init__.py"), *RUNNING, *here])
    script.snapshot(1000, (ANON, 4, PAGE_EXCLUSIVE))
    assert tree(script) == {"fast._core": (3, 4), "fast._core > numpy": (1, 1)}


def test_what_is_not_known_has_rows_of_its_own():
    script = traced(APP, PANDAS, (), (), snapshot=False)
    script.snapshot(1000, (ANON, 6, PAGE_EXCLUSIVE))
    found = tree(script)
    assert found == {"(no Python frame)": (2, 2), "(not known: no fault)": (2, 2), "(not importing)": (1, 1),
                     "pandas": (1, 1)}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/lib/python3.11/json/decoder.py", "json.decoder"),
        ("/usr/lib/python3.11/json/__init__.py", "json"),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", "yaml"),
        ("/srv/lib.zip/pkg/mod.py", "pkg.mod"),
        ("<frozen os>", "os"),
        ("<string>", "(imported at /srv/app/app.py:3)"),
        ("/srv/app/part.py", "part"),
        ("/opt/known/pkg/sub/mod.py", "pkg.sub.mod"),
        ("/opt/known/other.py", "other"),
    ],
)
def test_modules_are_named_as_they_are_imported(path, name):
    packages = [[("work", f"/opt/known/{folder}/__init__.py", 1)] for folder in ("pkg", "pkg/sub")]
    found = tree(traced([("<module>", path, 1), *RUNNING, *MAIN], *packages))
    assert found == {"(not importing)": (2, 2), name: (1, 1)}


def test_the_command_answers_in_its_first_line(tmp_path):
    many = [PANDAS] * 300 + [[*body("numpy/__init__.py"), *RUNNING, *PANDAS]] * 600
    saved(traced(*many, *[APP] * 100).trace(), path := str(tmp_path / "x.wst"))
    shown = CliRunner().invoke(command, [path])
    assert shown.output.splitlines()[0] == "import pandas brings 3.5 of 3.9 MiB at the peak: 2.3 numpy, 1.2 pandas", (
        shown.output
    )
    assert "(not importing)" in shown.output
    data = json.loads(CliRunner().invoke(command, [path, "--json"]).output)
    assert data["total"]["resident"] == 1000 * PAGE
    assert data["rows"][0]["import"] == "pandas"
    assert data["rows"][0]["cumulative"]["resident"] == 900 * PAGE
    assert data["rows"][1]["path"] == ["pandas", "numpy"]


def test_of_a_sampled_trace_what_rows_have_is_reported_as_estimates(tmp_path):
    trace = traced(*[PANDAS] * 300, *[APP] * 700).trace()
    trace.info.sampled = 10
    saved(trace, path := str(tmp_path / "x.wst"))
    first, *lines = CliRunner().invoke(command, [path, "-v"]).output.splitlines()
    assert first.startswith("import pandas brings ~1.2 of 3.9 MiB at the peak")
    (row,) = [line.split() for line in lines if line.endswith(" pandas")][:1]
    assert row == ["~1.2", "MiB", "~1.2", "MiB", "~1.2", "MiB", "~300", "~0", "pandas"]
    totals = [line.split() for line in lines if line.endswith(" Total")]
    assert totals[0] == ["~3.9", "MiB", "~3.9", "MiB", "~3.9", "MiB", "~1,000", "~0", "Total"]
    data = json.loads(CliRunner().invoke(command, [path, "--json"]).output)
    assert (data["estimated"], data["total"]["faults"]) == (True, 1000)


def test_a_peak_between_snapshots_is_reported_as_a_share(tmp_path):
    trace = traced(*[PANDAS] * 60, *[APP] * 40).trace()
    trace.info.usage = dataclasses.replace(trace.info.usage, peak_resident_bytes=160 * PAGE)
    saved(trace, path := str(tmp_path / "x.wst"))
    first = CliRunner().invoke(command, [path]).output.splitlines()[0]
    assert first == "import pandas brings 240.0 of 400.0 KiB at the peak"
    assert "the snapshot has 400.0 KiB of a peak of 640.0 KiB" in CliRunner().invoke(command, [path]).output
    shown = CliRunner().invoke(command, [path, "--at", "exit"]).output
    assert "of a peak" not in shown


def test_min_and_top_bound_what_is_shown_and_not_what_is_counted(tmp_path):
    stacks = [[*body(f"mod{n}.py"), *RUNNING, *MAIN] for n in range(30) for _ in range(n + 1)]
    saved(traced(*stacks).trace(), path := str(tmp_path / "x.wst"))
    shown = CliRunner().invoke(command, [path, "--top", "3", "--min", "80KiB"]).output
    tree, table = shown.split(" resident ")
    assert [name for name in ("mod28", "mod19", "mod18") if name in tree] == ["mod28", "mod19"], shown
    assert [name for name in ("mod29", "mod27", "mod26", "1.8 MiB") if name in table] == ["mod29", "mod27", "1.8 MiB"]


def test_a_trace_without_python_stacks_says_how_to_get_them(tmp_path):
    script = traced((), ())
    trace = script.trace()
    with pytest.raises(UsageError, match="no Python stacks"):
        imports(trace)
    trace.info.incomplete = "the file is cut: its end is missing"
    with pytest.raises(UsageError, match="its end is missing"):
        imports(trace)
