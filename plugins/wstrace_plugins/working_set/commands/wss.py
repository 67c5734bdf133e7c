"""`wstrace wss PID`: what a process uses of its memory in a time."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import click

from wstrace.cli.common import Duration, debug_privilege, json_option, print_json
from wstrace.errors import TargetExited, UsageError
from wstrace.plugins import Plugins
from wstrace.schema import KINDS
from wstrace.terminal import Column, Output, TextTable
from wstrace.text import duration, printable, size
from wstrace_plugins.working_set.backend import backend

_NOTES = (
    "the referenced bits of process {0} were cleared: where memory is short, the kernel takes pages that were not "
    "used since for unused ones",
    "a huge page counts whole, of files too; so may pages that a fault maps beside the touched one, and pages of files "
    "that other processes use",
)


class Use(NamedTuple):
    """What was used of one file or kind of memory, and what of it was resident at the end, in bytes."""

    name: str
    kind: str
    used: int
    resident: int


@click.command()
@click.argument("pid", type=int)
@click.option("--for", "seconds", type=Duration(), required=True, metavar="TIME", help="For how long, as 10s or 2m.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="So many files at most.")
@json_option
@debug_privilege
def wss(pid: int, seconds: float, top: int, as_json: bool) -> None:
    """Show what a process uses of its memory: the true working set, by file and kind of memory (Linux).

    By the referenced bits of its pages: they are cleared, and the processor sets those of the pages that are used
    again. Page faults alone cannot show this, as a page that is in memory already takes none.
    """
    if pid == os.getpid():
        raise UsageError("this is the process of wstrace itself")
    if not seconds:
        raise UsageError("--for 0: nothing is used in no time", "write for how long, as 10s")
    took, uses = referenced(pid, seconds)
    used, resident = sum(use.used for use in uses), sum(use.resident for use in uses)
    notes = [note.format(pid) for note in _NOTES]
    if as_json:
        print_json({"schema": 2, "pid": pid, "method": "referenced bits", "notes": notes, "seconds": took,
                    "uses": [use._asdict() for use in uses], "used": used, "resident": resident})  # fmt: skip
        return
    largest = ", ".join(f"{size(use.used)} {printable(use.name)}" for use in uses[:3] if use.used)
    line = f"used at most {size(used)} of {size(resident)} resident in {duration(took)}"
    columns = [Column("used"), Column("resident"), Column("share"), Column("kind", "text"), Column("file", "name")]
    rows = [[size(use.used), size(use.resident), f"{use.used / use.resident:.0%}", use.kind, use.name]
            for use in uses]  # fmt: skip
    Output.standard("stdout").show(f"{line}: {largest}" if largest else line, "", TextTable.of(columns, rows, top))
    for note in notes:
        click.echo(f"wstrace: note: {note}", err=True)


def referenced(pid: int, seconds: float) -> tuple[float, list[Use]]:
    """What a process uses in that time, by the referenced bits of its pages, which are cleared for it.

    Returns:
        How many seconds it took; by name and kind, the largest use first.

    Raises:
        TargetExited: the process ended, or executed another program.
        Unavailable: it belongs to another user, or the system has no referenced bits.
    """
    target = Plugins.from_environment(third_party=False).platform.attach(pid)
    try:
        read, started = backend().clear_referenced(pid), time.perf_counter()
        if target.wait(seconds) is not None:
            raise TargetExited(f"process {pid} ended while it was watched")
    finally:
        target.close()
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for name, number, used, resident in read():
        kind = KINDS[number if number < len(KINDS) else 0]
        before = sums.get((name, kind), (0, 0))
        sums[name, kind] = before[0] + used, before[1] + resident
    uses = [Use(*owner, *both) for owner, both in sums.items() if both[1]]
    uses.sort(key=lambda use: (-use.used, -use.resident, use.name))
    return time.perf_counter() - started, uses
