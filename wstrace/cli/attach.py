"""`wstrace attach`: traces running processes and leaves them running at the end."""

from __future__ import annotations

import fnmatch
import os
from contextlib import ExitStack, closing

import click

from wstrace.cli.tracing import Recording, Tracing, tracing_options
from wstrace.errors import TargetExited, UsageError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@tracing_options
@click.option("-p", "--pid", "more", type=int, multiple=True, help="A process id.")
@click.option("--name", "names", multiple=True, metavar="GLOB", help="All processes whose name matches.")
@click.argument("pids", nargs=-1, type=int)
def attach(options: Tracing, more: tuple[int, ...], names: tuple[str, ...], pids: tuple[int, ...]) -> int:
    """Trace running processes until Ctrl-C, --duration or their end; they go on.

    \b
    wstrace attach 4711 --duration 30s
    wstrace attach --name 'redis-*' -o redis.wst
    """
    recording = Recording(options)
    wanted = list(dict.fromkeys([*pids, *more, *_by_name(names)]))
    if not wanted:
        raise UsageError("no process given", "write: wstrace attach PID, or --name GLOB")
    platform = recording.plugins.platform
    with ExitStack() as opened:
        return recording.record([opened.enter_context(closing(platform.attach(pid))) for pid in wanted])


def _by_name(names: tuple[str, ...]) -> list[int]:
    """The ids of the other processes whose name matches a glob. Raises TargetExited when there is none."""
    if not names:
        return []
    import psutil

    found = [
        process.pid
        for process in psutil.process_iter(["name"])
        if process.pid != os.getpid() and any(fnmatch.fnmatch(process.info["name"] or "", g) for g in names)
    ]
    if not found:
        raise TargetExited(f"no process is named {' or '.join(names)}", "wstrace ps shows the names")
    return found
