"""Prefetch lists: which parts of which files a start needs, read ahead of the next one. The command `prefetch`.

`start_list` is the format, `making` takes a list from a trace, `applying` reads its files ahead, `comparing` measures
what that gains. `backend.py` describes what it needs from the system.
"""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.declarations import Command
from wstrace.hookspecs import hookimpl


@hookimpl
def wstrace_commands() -> Sequence[Command]:
    """The command `prefetch`."""
    about = "Read what a start needs of its files ahead, from a trace of an earlier start."
    return [Command("prefetch", about, "wstrace_plugins.prefetch.command:prefetch", "Files")]
