"""`--debug-privilege`: an option of the commands that open processes."""

from __future__ import annotations

import click

from wstrace.plugins import Plugins


def _switch_on(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        Plugins.from_environment(third_party=False).platform.debug_privilege()


#: A decorator that gives a click command the option; the privilege is enabled before the command begins.
debug_privilege = click.option(
    "--debug-privilege",
    is_flag=True,
    expose_value=False,
    callback=_switch_on,
    help="Open other users' processes (as administrator).",
)
