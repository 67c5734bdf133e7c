"""What the commands share: durations as option values, JSON on standard output, and the end of a session on a file."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from wstrace.errors import OutputError
from wstrace.options import parse_duration
from wstrace.text import json_safe

if TYPE_CHECKING:
    from wstrace.session import Session


class Duration(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic since click 8.4
    """`30s`, `5m`: seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds, or a usage error."""
        try:
            return value if isinstance(value, float) else parse_duration(value)
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


#: gives a click command the flag `--json`, as its argument `as_json`
json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable JSON.")


def print_json(value: Any) -> None:
    """Writes plain values to standard output as indented JSON; names from outside are made well-formed first."""
    click.echo(json.dumps(json_safe(value), indent=1))


def exit_on_exporter_error(session: Session) -> None:
    """After stop(): ends the command with exit code 123 when an exporter failed.

    Raises:
        OutputError: says why it failed, and which of several it was.
    """
    for queue in session.exporter_queues:
        if why := queue.error or queue.detached:
            raise OutputError(f"exporter {queue.name}: {why}" if len(session.exporter_queues) > 1 else why)


def is_administrator() -> bool:
    """Whether we run as root, or elevated on Windows: then nothing is read from the working directory."""
    if hasattr(os, "geteuid"):
        return bool(os.geteuid() == 0)
    from wstrace.plugins import own_platform

    platform = own_platform()
    return platform is not None and platform.is_administrator()
