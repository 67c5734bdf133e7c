"""`wstrace plugins`: lists the plugins behind the entry points with their state; `plugins NAME` shows options."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import click

from wstrace.cli.common import print_json
from wstrace.errors import UsageError, WstraceError
from wstrace.options import meanings, options_of
from wstrace.plugins import Plugins
from wstrace.terminal import Column, Output, TextTable
from wstrace.text import nearest

#: What `--json` shows of a plugin.
_SHOWN = ("name", "distribution", "version", "state", "hooks", "error")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.option("--no-plugins", is_flag=True, help="Load wstrace's own plugins only.")
@click.option("-P", "--plugin", multiple=True, metavar="no:NAME", help="Leave a plugin out.")
@click.argument("name", required=False)
def plugins(as_json: bool, no_plugins: bool, plugin: tuple[str, ...], name: str | None) -> None:
    """Show the plugins found: name, distribution, version, state, hooks, suffixes of its file formats, error.

    With the NAME of a source, exporter or enricher: what it does, and its options for -s NAME:OPT=VAL or -e.
    """
    disabled = [word.removeprefix("no:") for word in plugin]
    found = Plugins.from_environment(disabled=disabled, third_party=not no_plugins)
    if name is not None:
        Output.standard("stdout").show(*_described(found, name))
        return
    for role in ("sources", "enrichers", "resolvers", "exporters", "formats", "platform", "dimensions"):
        with contextlib.suppress(WstraceError):
            getattr(found, role)  # calls the hook, so that a plugin whose hook raises is listed as failed
    if as_json:
        print_json([{name: getattr(p, name) for name in _SHOWN} for p in found.found])
        return
    suffixes: dict[str, list[str]] = {}
    with contextlib.suppress(WstraceError):
        for suffix, (plugin_name, _) in found.formats.items():
            suffixes.setdefault(plugin_name, []).append(suffix)
    rows = [
        [p.name, f"{p.distribution} {p.version}", p.state,
         "  ".join(filter(None, [", ".join(hook.removeprefix("wstrace_") for hook in p.hooks),
                                 " ".join(suffixes.get(p.name, ())), p.error]))]
        for p in found.found
    ]  # fmt: skip
    Output.standard("stdout").show(TextTable([Column("", "text")] * 4, rows, whole=True))


def _described(found: Plugins, name: str) -> Iterator[str | TextTable]:
    """What a source, exporter or enricher does, and its options. Raises UsageError."""
    classes: dict[str, dict[str, Any]] = {
        "source": found.sources,
        "exporter": found.exporters,
        "enricher": found.enrichers,
    }
    role = next((role for role, named in classes.items() if name in named), None)
    if role is None:
        known = [known for named in classes.values() for known in named]
        raise UsageError(f"there is no source, exporter or enricher {name!r}", nearest(name, known))
    cls = classes[role][name]
    summary = (inspect.getdoc(cls) or "").split("\n\n")[0]
    yield f"{role} {name}: {' '.join(summary.split())}"
    meaning, rows = meanings(cls), []
    for option in options_of(cls).values():
        default = "required" if option.default is inspect.Parameter.empty else repr(option.default)
        rows.append([f"  {option.name}", option.type_name, default, meaning.get(option.name, "")])
    headings = ("  option", "type", "default", "meaning")
    yield TextTable([Column(heading, "text") for heading in headings], rows, whole=True)
