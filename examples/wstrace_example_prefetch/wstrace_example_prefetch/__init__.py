"""An outsider's plugin: the command `prefetch`. This module is imported at every start, so it imports nothing heavy."""

from collections.abc import Sequence

from wstrace.declarations import Command
from wstrace.hookspecs import hookimpl


@hookimpl
def wstrace_commands() -> Sequence[Command]:
    """The command `prefetch`."""
    about = "Read what a start needs of its files ahead, from a trace of an earlier start."
    return [Command("prefetch", about, "wstrace_example_prefetch.command:prefetch", "Files")]
