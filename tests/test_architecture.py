"""Who may import whom, and what the core may know: read from the folders on disk."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from kit.machine import MACHINE

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "wstrace"
PLUGINS = sorted(p.parent for p in (ROOT / "plugins" / "wstrace_plugins").glob("*/__init__.py"))
EXPORTERS = sorted(p.parent for p in (ROOT / "exporters" / "wstrace_exporters").glob("*/__init__.py"))
#: Spark finds a data source by a module of such a name: it is no plugin, and has no entry point.
SPARK = ROOT / "exporters" / "pyspark_wstrace"
OURS = {"wstrace", SPARK.name, "wstrace_plugins", "wstrace_exporters"}

#: what the core may import besides the standard library
CORE_LIBRARIES = {"numpy", "pluggy", "click"}
#: what a table is handed over to, where it is installed: imported inside functions only
OPTIONAL_LIBRARIES = {"arrow.py": {"arro3"}, "table.py": {"pandas"}}
CORE_FORBIDDEN = {"ctypes", "mmap", "fcntl", "resource", "msvcrt", "winreg", "select"}

#: which folders of the core a folder imports besides itself; "" has the files that are in no folder. That no module
#: imports itself over others (below) keeps order within a folder
DIRECTIONS = {"": {"analysis"}, "analysis": {""}, "testing": {""}, "cli": {""}}


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Absolute module names that a file imports (with the names of `from x import y` as x.y)."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def tops(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def package_name(folder: Path) -> str:
    """The dotted name of a package: `wstrace_plugins.os`."""
    return f"{folder.parent.name}.{folder.name}"


def rooms(names: set[str]) -> set[str]:
    """The packages of ours behind imported names: `wstrace`, `wstrace_plugins.os`, `pyspark_wstrace`."""
    parts = [name.split(".") for name in names]
    found = {".".join(p[:2]) if p[0] in {"wstrace_plugins", "wstrace_exporters"} else p[0] for p in parts}
    return {name for name in found if name.split(".")[0] in OURS}


@pytest.mark.parametrize("path", modules(CORE), ids=lambda p: str(p.relative_to(CORE)))
def test_the_core_imports_no_plugin_no_exporter_and_no_system(path):
    found = tops(imports(path))
    assert found & OURS <= {"wstrace"}
    assert not found & CORE_FORBIDDEN
    terminal = {"rich"} if path == CORE / "terminal.py" else set()
    optional = OPTIONAL_LIBRARIES.get(path.name, set()) if path.parent == CORE else set()
    assert found <= set(sys.stdlib_module_names) | CORE_LIBRARIES | {"wstrace"} | terminal | optional
    assert not tops(imports(path, top_level_only=True)) & optional


def test_the_terminal_alone_uses_rich():
    users = {
        path
        for folder in (CORE, *PLUGINS, *EXPORTERS, SPARK)
        for path in modules(folder)
        if "rich" in tops(imports(path))
    }
    assert users == {CORE / "terminal.py"}


@pytest.mark.parametrize("path", modules(CORE), ids=lambda p: str(p.relative_to(CORE)))
def test_the_core_names_no_system_and_no_exporter(path):
    """In code: identifiers, attributes and string literals. Prose (docstrings, comments) may.

    The one exception is the table of public names in wstrace/__init__.py: where each of them is in this wheel.
    """
    if path == CORE / "__init__.py":
        return
    tree = ast.parse(path.read_text("utf-8"))
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    words = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            words.add(node.id.lower())
        elif isinstance(node, ast.Attribute):
            words.add(node.attr.lower())
            if isinstance(node.value, ast.Name):
                words.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            words |= set(node.value.lower().replace(":", " ").replace("_", " ").split())
    exporters = {p.name for p in EXPORTERS}
    assert not words & ({"linux", "windows", "win32", "darwin", "sys.platform", "os.name"} | exporters)


def folder_of(path: Path) -> str:
    """The folder of the core that a file or package is in, "" for those in none."""
    return path.relative_to(CORE).parts[0] if path.parent != CORE else ""


@pytest.mark.parametrize("path", modules(CORE), ids=lambda p: str(p.relative_to(CORE)))
def test_the_folders_of_the_core_import_in_one_direction(path):
    """In functions and for type checkers too. `python -m wstrace` alone enters the command line."""
    own = folder_of(path)
    found = {parts[1] for name in imports(path) if (parts := name.split("."))[0] == "wstrace" and len(parts) > 1}
    folders = {name if name in DIRECTIONS else "" for name in found} - {own}
    assert folders <= DIRECTIONS[own] | ({"cli"} if path.name == "__main__.py" else set())


def test_every_folder_of_the_core_has_a_direction():
    assert {folder_of(path) for path in modules(CORE)} == set(DIRECTIONS)


@pytest.mark.parametrize("package", [*PLUGINS, *EXPORTERS], ids=lambda p: p.name)
def test_a_package_imports_only_the_core_and_what_plugins_share(package):
    shared = {"wstrace_plugins.os"} if package in PLUGINS else set()
    for path in modules(package):
        assert rooms(imports(path)) <= {"wstrace", package_name(package)} | shared, path


def test_the_data_source_of_spark_reads_files_and_imports_nothing_before():
    """Spark imports it in every session, where wstrace is installed: that must cost nothing."""
    for path in modules(SPARK):
        assert rooms(imports(path)) <= {"wstrace", "wstrace_exporters.msgpack", SPARK.name}, path
    assert imports(SPARK / "__init__.py", top_level_only=True) <= {
        "__future__.annotations", "typing.TYPE_CHECKING", "pyspark.sql.datasource.DataSource"}  # fmt: skip


def module_name(path: Path) -> str:
    """The dotted name under which a file is imported; a package's is that of its `__init__.py`."""
    home = next(ROOT / top for top in ("plugins", "exporters", "") if path.is_relative_to(ROOT / top))
    return ".".join(path.relative_to(home).with_suffix("").parts).removesuffix(".__init__")


def graph() -> dict[str, set[str]]:
    """module -> modules of ours that it imports anywhere: at its top, in functions and under TYPE_CHECKING.

    That importing a submodule runs the packages above it is not counted.
    """
    paths = {module_name(path): path for folder in (CORE, *PLUGINS, *EXPORTERS, SPARK) for path in modules(folder)}
    found = {}
    for module, path in paths.items():
        names = ({name, name.rpartition(".")[0]} for name in imports(path))
        found[module] = {max(known, key=len) for both in names if (known := both & paths.keys())}
    return found


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """The groups of modules each of which imports, over whatever detour, all others of its group."""

    def reachable(module):
        seen = set()
        waiting = [*edges[module]]
        while waiting:
            if (name := waiting.pop()) not in seen:
                seen.add(name)
                waiting += edges[name]
        return seen

    reach = {module: reachable(module) for module in edges}
    groups = {frozenset(b for b in reach[a] if a in reach[b]) for a in edges if a in reach[a]}
    return [set(group) for group in sorted(groups, key=sorted)]


def test_circles_are_found():
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"e"}, "f": {"a"}}
    assert circles(edges) == [{"a", "b", "c"}, {"e"}]


def test_no_module_imports_itself_over_others():
    """No circle: not of imports inside functions either, nor of those that only a type checker reads."""
    assert circles(graph()) == []


#: rooms of a package, lowest first: a room imports only rooms of lower floors, and what stands outside all rooms
ROOMS = {
    "wstrace_exporters.msgpack": [{"format"}, {"storage"}, {"read"}, {"write", "interchange"}, {"commands"}],
    "wstrace_exporters.otel": [
        {"names"},
        {"propagation", "spans"},
        {"offloaded"},
        {"transport"},
        {"export"},
        {"otel"},
        {"exporter", "by_container", "instrumentor"},  # the doors: what hooks and users name
    ],
}


@pytest.mark.parametrize("package", [*PLUGINS, *EXPORTERS], ids=lambda p: p.name)
def test_rooms_import_downward_only(package):
    floors = ROOMS.get(package_name(package), [{"linux", "windows"}])
    floor = {room: number for number, rooms in enumerate(floors) for room in rooms}
    for path in modules(package):
        own = path.relative_to(package).parts[0].removesuffix(".py")
        if own not in floor:
            continue
        for name in imports(path):
            parts = name.split(".")
            if (
                name.startswith(package_name(package) + ".")
                and len(parts) > 2
                and parts[2] != own
                and parts[2] in floor
            ):
                assert floor[parts[2]] < floor[own], f"{path}: imports {name}"


def test_every_module_of_the_otel_exporter_has_a_floor():
    package = ROOT / "exporters" / "wstrace_exporters" / "otel"
    own = {path.relative_to(package).parts[0].removesuffix(".py") for path in modules(package)}
    assert own - {"__init__"} == set().union(*ROOMS["wstrace_exporters.otel"])


def test_what_plugins_share_knows_only_the_contracts():
    for path in modules(ROOT / "plugins" / "wstrace_plugins" / "os"):
        for name in imports(path):
            if name.startswith("wstrace."):
                assert name.split(".")[1] in {"errors", "interfaces", "hookspecs", "schema", "batch", "cgroup_names"}, (
                    f"{path}: {name}"
                )


def test_the_system_is_found_out_in_one_place():
    for folder in (CORE, *PLUGINS, *EXPORTERS, SPARK):
        for path in modules(folder):
            text = path.read_text("utf-8")
            if path.name == "__init__.py" and folder.name == "os":
                continue
            assert "sys.platform" not in text, path
            assert "platform.system()" not in text, path


def test_no_module_for_linux_excuses_its_types_for_windows():
    """mypy for Windows leaves these folders out (`--exclude /linux/`), so what it would say of them needs no excuse."""
    excused = [
        path
        for package in (*PLUGINS, *EXPORTERS)
        for path in modules(package)
        if "linux" in path.parts
        and re.search(r"unused-ignore|mypy: disable|: Any = (os|signal|socket)$", path.read_text("utf-8"), re.M)
    ]
    assert not excused


def test_types_are_excused_at_25_lines_at_most():
    sources = [path for folder in (CORE, *PLUGINS, *EXPORTERS, SPARK, ROOT / "tests") for path in modules(folder)]
    comment = "# type" + ": ignore"
    assert sum(path.read_text("utf-8").count(comment) for path in sources) <= 25


@pytest.mark.parametrize("package", [*PLUGINS, *EXPORTERS], ids=lambda p: p.name)
def test_an_entry_point_module_imports_nothing_heavy(package):
    light = set(sys.stdlib_module_names) | OURS
    assert tops(imports(package / "__init__.py", top_level_only=True)) <= light


@pytest.mark.parametrize("folder", ["plugins", "exporters", "tests", "examples"])
def test_a_folder_of_packages_is_no_package(folder):
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_file_is_past_600_lines():
    long = {
        str(path.relative_to(ROOT)): n
        for folder in (CORE, *PLUGINS, *EXPORTERS, SPARK, ROOT / "tests")
        for path in modules(folder)
        if (n := len(path.read_text("utf-8").splitlines())) > 600
    }
    assert not long


def test_every_package_has_its_entry_point_and_is_in_the_wheel():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    points = project["project"]["entry-points"]
    commands = {".".join(target.split(".")[:2]) for target in points["wstrace.commands"].values()}
    behind = {*points["wstrace"].values(), *points["pytest11"].values(), *commands - {"wstrace.cli"}}
    packed = {Path(p).name for p in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert {package_name(p) for p in (*PLUGINS, *EXPORTERS)} == behind
    assert packed == OURS


def test_what_one_worker_runs_is_there():
    """A renamed test would run beside those that it disturbs."""
    for file, _, name in (entry.partition("::") for entry in MACHINE):
        assert f"def {name or 'test_'}" in (ROOT / file).read_text("utf-8"), (file, name)
