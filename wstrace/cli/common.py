"""What commands share: durations as option values, JSON output, failed exporters, the check for an administrator."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from wstrace.errors import OutputError
from wstrace.options import parse_duration, parse_size
from wstrace.text import json_safe

if TYPE_CHECKING:
    from wstrace.session import Session


class _Parsed(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic since click 8.4
    """An option value that a function of wstrace.options reads; a default is of its kind already."""

    parse: Callable[[str], int | float]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        """The value. Raises click.BadParameter."""
        try:
            return self.parse(value) if isinstance(value, str) else value
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


class Duration(_Parsed):
    """An option value such as `30s` or `5m`, converted to seconds."""

    name, parse = "duration", staticmethod(parse_duration)


class Size(_Parsed):
    """An option value such as `200MiB`, converted to bytes."""

    name, parse = "size", staticmethod(parse_size)


def time_window(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that gives a click command --start and --end, in seconds of the trace; None where not given."""
    start = click.option(
        "--start",
        type=Duration(),
        metavar="30s",
        help="From this time on; 0 is the trace's start, just before the target runs.",
    )
    end = click.option("--end", type=Duration(), metavar="5m", help="Up to this time, from the same start.")
    return start(end(command))


def _switch_on(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from wstrace.plugins import Plugins

        Plugins.from_environment(third_party=False).platform.debug_privilege()


#: A decorator that gives a click command the option; the privilege is enabled before the command begins.
debug_privilege = click.option(
    "--debug-privilege",
    is_flag=True,
    expose_value=False,
    callback=_switch_on,
    help="Open other users' processes (as administrator).",
)


#: A decorator that gives a click command the flag `--json` as its argument `as_json`.
json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable JSON.")


#: A decorator that gives a click command the option `-s` as its argument `sources`.
sources_option = click.option(
    "-s", "--source", "sources", multiple=True, metavar="NAME[:OPT=VAL,...]", help="Add a source."
)


def print_json(value: Any) -> None:
    """Writes plain values to standard output as indented JSON; text that is not well-formed Unicode is escaped."""
    import json

    click.echo(json.dumps(json_safe(value), indent=1))


def exit_on_exporter_error(session: Session) -> None:
    """Raises OutputError (exit code 123) when an exporter of a stopped session failed.

    Raises OutputError: why each of the exporters failed that did, and which one it was if there were several.
    """
    queues = session.exporter_queues
    if failed := [(queue.name, why) for queue in queues if (why := queue.error or queue.detached)]:
        raise OutputError("; ".join(f"exporter {name}: {why}" if len(queues) > 1 else why for name, why in failed))


def is_administrator() -> bool:
    """Whether this process runs as root, or elevated on Windows; then the working directory is not trusted."""
    if hasattr(os, "geteuid"):
        return bool(os.geteuid() == 0)
    from wstrace.plugins import own_platform

    platform = own_platform()
    return platform is not None and platform.is_administrator()
