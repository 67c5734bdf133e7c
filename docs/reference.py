"""Makes the reference at build time, from the program itself: a mkdocs hook (`hooks:` in mkdocs.yml).

Commands come from click, options from signatures and docstrings, streams and tables from wstrace.schema, stages from
wstrace.ledger, exit codes from wstrace.errors, the public names from wstrace itself. Nothing here is written twice.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import wstrace
import wstrace.errors
from wstrace.cli import wstrace as command_line
from wstrace.ledger import STAGES
from wstrace.options import meanings, options_of
from wstrace.plugins import Plugins
from wstrace.schema import SEMANTICS, STREAMS, Column
from wstrace_exporters.msgpack.interchange.tables import known_tables, meaning, unit

ROOT = Path(__file__).resolve().parent.parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    pages = {
        "reference/commands.md": commands(),
        "reference/options.md": options(),
        "reference/streams.md": streams(),
        "reference/tables.md": tables(),
        "reference/api.md": api(),
        "how/file-format.md": (ROOT / "exporters/wstrace_exporters/msgpack/format/FORMAT.md").read_text("utf-8"),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """A Markdown table; line breaks and bars in its cells are made harmless."""
    lines = [head, tuple("---" for _ in head), *rows]
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def first_sentence(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n\n")[0]


# -- commands ------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command with the text of its `--help`, and the exit codes."""
    found = ["# Commands", "What `--help` says, and the exit codes."]
    with click.Context(command_line, info_name="wstrace", terminal_width=100, max_content_width=100) as top:
        found.append(f"```text\n{command_line.get_help(top)}\n```")
        for word in command_line.list_commands(top):
            command = command_line.get_command(top, word)
            assert command is not None
            with click.Context(command, info_name=word, parent=top, terminal_width=100, max_content_width=100) as ctx:
                found += [f"## {word}", f"```text\n{command.get_help(ctx)}\n```"]
    classes = [c for _, c in inspect.getmembers(wstrace.errors, inspect.isclass) if issubclass(c, wstrace.WstraceError)]
    codes = ((str(c.exit_code), f"`{c.__name__}`", first_sentence(c)) for c in sorted(classes, key=_exit_code))
    found += ["## Exit codes", "The target's own code is passed on. wstrace's own stand on its errors:"]
    found.append(table(("code", "error", "when"), codes))
    return "\n\n".join(found) + "\n"


def _exit_code(error: Any) -> int:
    return int(error.exit_code)


# -- options -------------------------------------------------------------------------------------------------------


def options() -> str:
    """The options of every source, enricher and exporter, from signatures and the docstrings' Args."""
    plugins = Plugins(third_party=False)
    found = ["# Options of sources and exporters", "Given as `-s NAME:option=value,...` and `-e NAME:option=value,...`,"
             " as keyword arguments in Python, and by table in a configuration file."]  # fmt: skip
    for role, flag in (("sources", "-s"), ("exporters", "-e"), ("enrichers", "")):
        for name, cls in sorted(getattr(plugins, role).items()):
            found += [f"## {name}", first_sentence(cls)]
            if rows := list(_options(cls)):
                head = f"`{flag} {name}:...`" if flag else "option"
                found.append(table((head, "type", "default", "meaning"), iter(rows)))
            else:
                found.append("No options.")
    return "\n\n".join(found) + "\n"


def _options(cls: type) -> Iterator[tuple[str, ...]]:
    meaning = meanings(cls)
    for name, option in options_of(cls).items():
        default = "required" if option.default is inspect.Parameter.empty else f"`{option.default!r}`"
        yield f"`{name}`", f"`{option.type_name}`", default, meaning.get(name, "")


# -- streams -------------------------------------------------------------------------------------------------------


def streams() -> str:
    """Every stream with its columns, what their numbers mean, and the stages of the loss ledger."""
    found = [
        "# Streams and the ledger",
        "A batch has the columns of one of these streams. One that a system cannot fill is absent, never zero; one that"
        " is *derived* can be computed again and is not stored in a file.",
    ]
    for schema in STREAMS.values():
        kind = "a state at one time" if schema.snapshot else "a series of events"
        rows = (
            (f"`{c.name}`", c.type, c.unit or c.semantic, c.about + (" (derived)" if c.derived else "") + words(c))
            for c in schema.columns
        )
        about = f": {schema.about}" if schema.about else ""
        found += [f"## {schema.name}", f"{kind.capitalize()}{about}.", table(("column", "type", "semantic", ""), rows)]
    found += ["## Semantics", table(("semantic", "the column holds"), iter(SEMANTICS.items()))]
    stages = {**STAGES, **Plugins(third_party=False).stages}
    rows = ((f"`{stage}`", "yes" if loss else "", about) for stage, (loss, about) in stages.items())
    found += ["## The loss ledger", table(("stage", "loss", "counts"), rows)]
    return "\n\n".join(found) + "\n"


def words(column: Column) -> str:
    """What each number of a column stands for; "" for one of plain numbers."""
    listed = ", ".join(f"{number} {word}" for number, word in enumerate(column.words) if word)
    return f": {listed}" if listed else ""


def tables() -> str:
    """The tables and views of `wstrace query`, as `query --schema` prints them."""
    found = [
        "# Tables of a query",
        'What `wstrace query FILE "select ..."` can ask: views first, then the streams of the file. `wstrace query'
        " --schema FILE` prints those that a file has. A column that a system cannot fill is absent, or null.",
    ]
    for name, (about, columns) in known_tables().items():
        rows = ((f"`{column.name}`", unit(column), meaning(column)) for column in columns)
        found += [f"## {name}", f"{about[:1].upper()}{about[1:]}.", table(("column", "unit", "meaning"), rows)]
    return "\n\n".join(found) + "\n"


# -- Python --------------------------------------------------------------------------------------------------------


def api() -> str:
    """Every public name, by mkdocstrings."""
    found = ["# Python", "Everything that `import wstrace` gives; a name is imported when it is first used."]
    names = {*wstrace.__all__} - {"__version__"}
    for name in sorted(names, key=str.lower):
        value = getattr(wstrace, name)
        home = (
            value.__name__ if inspect.ismodule(value) else f"{value.__module__}.{getattr(value, '__qualname__', name)}"
        )
        if not home.startswith("wstrace"):  # an instance, as of pluggy: described where it is made
            home = _defined(name)
        if home:
            found += [f"## {name}", f"::: {home}"]
    return "\n\n".join(found) + "\n"


def _defined(name: str) -> str:
    for module in ("hookspecs", "schema", "interfaces"):
        if hasattr(importlib.import_module(f"wstrace.{module}"), name):
            return f"wstrace.{module}.{name}"
    return ""
