"""`wstrace plugins`: what was found behind the entry points, and what became of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import click

from wstrace.errors import WstraceError
from wstrace.plugins import Plugins
from wstrace.text import printable


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.option("--no-plugins", is_flag=True, help="Load wstrace's own plugins only.")
@click.option("-P", "--plugin", multiple=True, metavar="no:NAME", help="Leave a plugin out.")
def plugins(as_json: bool, no_plugins: bool, plugin: tuple[str, ...]) -> None:
    """Show the plugins found: name, distribution, version, state, hooks, error."""
    disabled = [word.removeprefix("no:") for word in plugin]
    found = Plugins.from_environment(disabled=disabled, third_party=not no_plugins)
    for role in ("sources", "enrichers", "resolvers", "exporters", "commands", "api", "platform"):
        with contextlib.suppress(WstraceError):
            getattr(found, role)  # a hook that raises shows here
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(p) for p in found.found], indent=2))
        return
    for p in found.found:
        hooks = ", ".join(hook.removeprefix("wstrace_") for hook in p.hooks)
        line = f"{p.name:<14} {p.distribution} {p.version}  {p.state:<11} {hooks}"
        click.echo(printable(f"{line}  {p.error}".rstrip()))
