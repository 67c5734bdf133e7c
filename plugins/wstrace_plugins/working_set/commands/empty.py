"""`wstrace empty PID`: takes a process's pages out of memory."""

from __future__ import annotations

import click

from wstrace.cli.common import debug_privilege, json_option, print_json
from wstrace.errors import UsageError
from wstrace.terminal import Column, Output, TextTable
from wstrace.text import printable, size
from wstrace_plugins.working_set.backend import backend
from wstrace_plugins.working_set.empty import empty_working_set


@click.command()
@click.argument("pid", type=int)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@debug_privilege
def empty(pid: int, yes: bool, as_json: bool) -> None:
    """Take a process's pages out of memory; say what left, what stayed, and why.

    No data is lost: pages come back when they are used, which costs the process time.
    """
    if not yes:
        confirm(pid, "empty")
    done = empty_working_set(pid, others=True)
    if as_json:
        print_json({"pid": done.pid, "name": done.name, "before": done.before, "after": done.after,
                    "swap_out": done.swap_out, "stayed": dict(done.stayed)})  # fmt: skip
        return
    swap = f" ({size(done.swap_out)} to swap)" if done.swap_out else ""
    line = (f"process {done.pid} {done.name}: {size(done.before)} before, {size(done.after)} after, "
            f"{size(max(done.left, 0))} left memory{swap}")  # fmt: skip
    stayed = sorted(done.stayed.items(), key=lambda item: -item[1])
    table = TextTable([Column("stayed"), Column("why", "name")], [[size(n), why] for why, n in stayed])
    Output.standard("stdout").show(line, table)


def confirm(pid: int, command: str) -> None:
    """Asks on the terminal before a command takes pages out. Raises UsageError without a terminal."""
    import sys

    if not sys.stdin.isatty():
        raise UsageError(f"{command} asks before it acts, and nobody is there to answer", "add --yes")
    with backend().Space(pid) as space:
        name, owned = printable(space.name), space.owned()
    other = "" if owned else " of another user"
    click.confirm(f"Take the pages of process {pid} ({name}){other} out of memory?", abort=True, err=True)
