"""`wstrace plugins`: lists the plugins behind the entry points with their state."""

from __future__ import annotations

import contextlib
import dataclasses

import click

from wstrace.cli.common import print_json
from wstrace.errors import WstraceError
from wstrace.plugins import Plugins
from wstrace.terminal.output import Output
from wstrace.terminal.table import Column, TextTable


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.option("--no-plugins", is_flag=True, help="Load wstrace's own plugins only.")
@click.option("-P", "--plugin", multiple=True, metavar="no:NAME", help="Leave a plugin out.")
def plugins(as_json: bool, no_plugins: bool, plugin: tuple[str, ...]) -> None:
    """Show the plugins found: name, distribution, version, state, hooks, suffixes of its file formats, error."""
    disabled = [word.removeprefix("no:") for word in plugin]
    found = Plugins.from_environment(disabled=disabled, third_party=not no_plugins)
    for role in ("sources", "enrichers", "resolvers", "exporters", "commands", "formats", "platform"):
        with contextlib.suppress(WstraceError):
            getattr(found, role)  # calls the hook, so that a plugin whose hook raises is listed as failed
    if as_json:
        print_json([dataclasses.asdict(p) for p in found.found])
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
