"""What stands in the documents is true, and everything public says what it gives."""

import ast
import inspect
import re
import sys
from pathlib import Path

import pytest

import wstrace
import wstrace.hookspecs
from wstrace.ledger import STAGES
from wstrace.options import options_of
from wstrace.plugins import Plugins
from wstrace.schema import SEMANTICS, STREAMS

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [p for folder in ("wstrace", "plugins", "exporters") for p in sorted((ROOT / folder).rglob("*.py"))]


def test_every_hook_is_documented():
    hooks = [f for name, f in inspect.getmembers(wstrace.hookspecs, inspect.isfunction) if name.startswith("wstrace_")]
    assert len(hooks) >= 7
    for hook in hooks:
        prose = inspect.getdoc(hook) or ""
        assert "Returns" in prose, hook.__name__
        assert re.match(r"(When|At) ", prose), f"{hook.__name__}: say when it is called"
        assert "By:" in prose, f"{hook.__name__}: say who implements it"


def test_every_public_name_can_be_imported_and_is_documented():
    for name in wstrace.__all__:
        value = getattr(wstrace, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name


def test_the_stub_has_the_names_of_the_api_from_the_same_modules():
    stub = (ROOT / "wstrace" / "__init__.pyi").read_text("utf-8")
    named = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(stub))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    table = {name: f"{module}.{name}" for name, module in wstrace._API.items()}
    assert named == {**table, "otel": "wstrace_exporters.otel.otel"}
    assert set(wstrace.__all__) == {*named, "__version__"}
    assert set(wstrace.__all__) <= set(dir(wstrace))
    for name in table:
        value = getattr(wstrace, name)
        assert value is sys.modules[wstrace._API[name]] if name == "otel" else getattr(value, "__name__", name) == name
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        wstrace.no_such_name  # noqa: B018


def test_each_statement_about_windows_has_the_test_that_settles_it():
    tests = (ROOT / "tests" / "live" / "test_windows.py").read_text("utf-8")
    table = (ROOT / "docs" / "compatibility.md").read_text("utf-8").partition("### What is proven")[2]
    named = re.findall(r"`(test_\w+)`", table)
    assert len(named) >= 22
    assert sorted(named) == sorted(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_public_thing_has_a_docstring(path):
    tree = ast.parse(path.read_text("utf-8"))
    assert ast.get_docstring(tree), "the module"
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


def test_streams_and_stages_are_distinguished_by_their_words():
    assert all(column.semantic in SEMANTICS for schema in STREAMS.values() for column in schema.columns)
    assert all(about for _, about in STAGES.values())


def documented_options() -> dict[str, set[str]]:
    """name of a source or exporter -> the options in its table, in the pages of docs/."""
    found = {}
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text("utf-8")
        tables = re.findall(r"^\| option \(`-[se] (\w+):\.\.\.`\).*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
        for name, rows in tables:
            cells = [re.split(r"(?<!\\)\|", row)[1] for row in rows.splitlines()]
            found[name] = {option for cell in cells for option in re.findall(r"`(\w+)(?:=[^`]*)?`", cell)}
    return found


def test_option_tables_have_every_option():
    from wstrace_plugins.page_faults.linux import backend as linux
    from wstrace_plugins.page_faults.windows import backend as windows

    tables, plugins = documented_options(), Plugins()
    assert set(tables) >= {"page_faults", "working_set", "write_watch", "console", "msgpack", "otel"}
    for name, options in tables.items():
        classes = [{**plugins.sources, **plugins.exporters}[name]]
        if name == "page_faults":  # each system has a class of its own
            classes = [linux.PageFaults, windows.PageFaults]
        assert options == {option for cls in classes for option in options_of(cls)}, name


@pytest.mark.parametrize(
    "document", sorted(p for p in ROOT.rglob("*.md") if ".venv" not in p.parts), ids=lambda p: str(p.relative_to(ROOT))
)
def test_links_between_documents_hold(document):
    made = set(re.findall(r'"((?:reference|how)/[\w-]+\.md)":', (ROOT / "docs" / "reference.py").read_text("utf-8")))
    for link in re.findall(r"\]\(([^)#\s]+)\)", document.read_text("utf-8")):
        if "://" not in link and (document.parent / link).resolve().relative_to(ROOT) not in {
            Path("docs", m) for m in made
        }:
            assert (document.parent / link).exists(), link


def test_the_changelog_goes_by_version_and_says_each_thing_once():
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    titles = [version.partition("\n")[0] for version in versions]
    assert titles[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", title) for title in titles[1:])
    for version in versions:
        headings = re.findall(r"^### (.*)$", version, re.MULTILINE)
        assert headings == [word for word in ("Added", "Changed", "Fixed", "Removed") if word in headings]
        entries = re.findall(r"^[-*] .*$", version, re.MULTILINE)
        assert len(entries) == len(set(entries))


def test_the_tests_that_the_security_policy_names_exist():
    root = Path(__file__).resolve().parent
    named = re.findall(r"`(test_\w+)`", (root.parent / "SECURITY.md").read_text("utf-8"))
    assert len(named) >= 5
    assert [name for name in named if not list(root.rglob(f"{name}.py"))] == []
