"""What a user's type checker sees of the wheel, built and installed elsewhere: no name of the API is `Any`."""

import inspect
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import wstrace

ROOT = Path(__file__).resolve().parent.parent
#: arrays of rows, whose column types nobody knows before: the one alias, NDArray[Any]
ROWS = "numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]"
#: what is open to all: the shape of any array, the parameters of a bare slice, the options of a plugin of anybody's
OPEN = re.compile(r"numpy\.ndarray\[tuple\[Any, \.\.\.\], |slice\[Any, Any, Any\]|"
                  r"tuple\[str, typing\.Mapping\[str, Any\], fallback=wstrace\.options\.Spec\]")  # fmt: skip
#: pandas has types in `pandas-stubs` only: what is its own is its own business
THEIRS = {"Batches.to_pandas"}

USER = """
import wstrace

with wstrace.Session(exporters=["msgpack:path=x.wst"]) as session:
    reveal_type(session.trace.batches("page_fault").to_numpy())
reveal_type(session.trace.report(by="file").rows[0].label)
with wstrace.open_trace("x.wst") as trace:
    reveal_type([batch["va"] for batch in trace.batches("page_fault")])
    reveal_type(trace.info.level)
    reveal_type(trace.ledger.as_dict())
    reveal_type(trace.save("x.csv", force=True))
reveal_type(wstrace.working_set().by("module")[0].private)
with wstrace.delta() as d:
    reveal_type(d.minor_faults)
reveal_type(wstrace.WriteWatch(4096).ranges())
with wstrace.span("load"):
    pass
wstrace.no_such_name
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A Python that has the wheel and, beside it, the libraries that we have."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=100)
    python = folder / "venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    target = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel]
    subprocess.run(target, check=True, timeout=300)
    libraries = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "libraries.pth").write_text("\n".join([*libraries, sysconfig.get_path("purelib")]))
    return python


def revealed(python: Path, text: str) -> tuple[dict[int, str], list[str]]:
    """line -> the type that mypy --strict reveals there, and its other messages."""
    user = python.parent / "user.py"
    user.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=",
         "--python-executable", python, "--cache-dir", python.parent / "cache", user],
        capture_output=True, text=True, cwd=python.parent, timeout=300,
    )  # fmt: skip
    types, others = {}, []
    for line in done.stdout.splitlines():
        found = re.search(r"user\.py:(\d+): note: Revealed type is \"(.*)\"", line)
        if found:
            types[int(found[1])] = found[2].replace("builtins.", "").replace(ROWS, "Rows")
        elif ": error:" in line:
            others.append(line)
    assert types, done.stdout + done.stderr
    return types, others


def members() -> list[str]:
    """Every public name, and every public attribute and method of the classes among them and of what they return."""
    from wstrace.analysis.dimensions import Row
    from wstrace_exporters.msgpack.read.trace import TraceFile
    from wstrace_plugins.working_set.delta import Delta
    from wstrace_plugins.working_set.working_set import WorkingSet

    found = [name for name in wstrace.__all__ if name != "__version__"]
    classes = {name: getattr(wstrace, name) for name in found if inspect.isclass(getattr(wstrace, name))}
    classes |= {cls.__name__: cls for cls in (TraceFile, WorkingSet, Delta, Row)}
    for name, cls in classes.items():
        annotated = {key for base in cls.__mro__ if base.__module__.startswith("wstrace") for key in vars(base)}
        found += [f"{name}.{key}" for key in sorted(annotated) if not key.startswith("_")]
    return found


def test_no_public_name_method_or_result_is_any(installed):
    names = members()
    assert len(names) > 200
    code = [
        "import wstrace",
        "from wstrace.analysis.dimensions import Row",
        "from wstrace_exporters.msgpack.read.trace import TraceFile",
        "from wstrace_plugins.working_set.delta import Delta",
        "from wstrace_plugins.working_set.working_set import WorkingSet",
    ]
    own = {"Row", "TraceFile", "Delta", "WorkingSet"}
    # an instance, not the class: a property then reveals its value, and a method its signature
    for name in names:
        head, _, member = name.partition(".")
        where = head if head in own else f"wstrace.{head}"
        code.append(
            f"def _(given: {where}) -> None: reveal_type(given.{member})" if member else f"reveal_type({where})"
        )
    types, others = revealed(installed, "\n".join(code) + "\n")
    assert not others
    first = len(code) - len(names) + 1
    untyped = {
        name: types[first + at]
        for at, name in enumerate(names)
        if name not in THEIRS and re.search(r"\bAny\b", OPEN.sub("", types[first + at]))
    }
    assert not untyped, "\n".join(f"{name}: {found}" for name, found in untyped.items())


def test_a_users_program_is_typed(installed):
    types, others = revealed(installed, USER)
    assert [re.sub(r"user\.py:\d+: ", "", line) for line in others] == [
        'error: Module has no attribute "no_such_name"  [attr-defined]'
    ]
    *plain, ranges = [found for _, found in sorted(types.items())]
    level = "tuple[str, str, str, fallback=wstrace.trace_info.Level]"  # as mypy writes a named tuple
    assert plain[3] in (f"{level} | None", f"Union[{level}, None]")
    plain = [found.replace("Union[int, None]", "int | None") for found in plain]
    assert [*plain[:3], *plain[4:]] == ["Rows", "str", "list[Rows]", "dict[str, int]", "int", "int", "int | None"]
    assert "numpy.signedinteger" in ranges


def test_every_package_of_the_wheel_says_that_it_is_typed(installed):
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([installed, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    packages = sorted(path for path in site.iterdir() if "wstrace" in path.name and path.suffix == "")
    assert [p.name for p in packages] == ["pyspark_wstrace", "wstrace", "wstrace_exporters", "wstrace_plugins"]
    assert [path.name for path in packages if not (path / "py.typed").exists()] == []


@pytest.mark.parametrize(("machine", "wanted"), [("AMD64", {"pyarrow", "arro3-core"}), ("ARM64", {"arro3-core"})])
def test_what_has_no_wheel_for_windows_on_arm_is_not_requested_there(machine, wanted):
    where = {"sys_platform": "win32", "os_name": "nt", "platform_system": "Windows", "platform_machine": machine}
    needed = [Requirement(text) for text in requires("wstrace") or ()]
    found = {need.name for need in needed if need.marker and need.marker.evaluate({**where, "extra": "convert"})}
    assert (
        found - {need.name for need in needed if need.marker and need.marker.evaluate({**where, "extra": ""})} == wanted
    )


def test_the_wheel_names_every_licence_that_it_holds(installed):
    (description,) = installed.parent.parent.rglob("wstrace-*.dist-info/METADATA")
    said = description.read_text("utf-8")
    assert "\nLicense-Expression: Apache-2.0 AND (MIT OR GPL-2.0-only)\n" in said
    files = re.findall(r"^License-File: (.+)$", said, re.MULTILINE)
    assert files == ["LICENSE"]
    assert all((description.parent / "licenses" / name).is_file() for name in files)
