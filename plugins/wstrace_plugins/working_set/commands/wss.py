"""`wstrace wss PID`: how much of its memory a process uses within a period."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

import click

from wstrace.cli.common import Duration, debug_privilege, json_option, print_json
from wstrace.errors import TargetExited, UsageError
from wstrace.plugins import Plugins
from wstrace.schema import KINDS
from wstrace.terminal import Column, Output, TextTable
from wstrace.text import duration, plural, printable, size
from wstrace_plugins.working_set.backend import backend
from wstrace_plugins.working_set.commands.empty import confirm
from wstrace_plugins.working_set.delta import Delta
from wstrace_plugins.working_set.empty import empty_working_set

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
@click.option(
    "--by-emptying", is_flag=True, help="Take all pages out of memory, and see which come back (Windows too)."
)
@click.option("--yes", is_flag=True, help="With --by-emptying: do not ask.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="At most this many files.")
@json_option
@debug_privilege
def wss(pid: int, seconds: float, by_emptying: bool, yes: bool, top: int, as_json: bool) -> None:
    """Show what a process uses of its memory: the true working set, by file and kind of memory.

    By the referenced bits of its pages (Linux): they are cleared, and the processor sets those of the pages that are
    used again. Page faults alone cannot show this, as a page that is in memory already takes none: --by-emptying
    takes all pages out first, which costs the process a fault for each that it uses.
    """
    if pid == os.getpid():
        raise UsageError("this is the process of wstrace itself")
    if not seconds:
        raise UsageError("--for 0: nothing is used in no time", "write for how long, as 10s")
    if by_emptying:
        if not yes:
            confirm(pid, "wss --by-emptying")
        method, most = "emptying", ""
        took, uses, stayed, faults = after_emptying(pid, seconds)
        cost = "" if faults is None else f", which cost it {plural(faults, 'page fault')}"
        notes = [f"its pages were taken out of memory{cost}"]
        if stayed:
            notes.append(f"{size(stayed)} were still in memory right after: whether they were used is not known")
    else:
        method, most, notes = "referenced bits", "at most ", [note.format(pid) for note in _NOTES]
        took, uses = referenced(pid, seconds)
    used, resident = sum(use.used for use in uses), sum(use.resident for use in uses)
    if as_json:
        print_json({"schema": 2, "pid": pid, "method": method, "notes": notes, "seconds": took,
                    "uses": [use._asdict() for use in uses], "used": used, "resident": resident})  # fmt: skip
        return
    largest = ", ".join(f"{size(use.used)} {printable(use.name)}" for use in uses[:3] if use.used)
    line = f"used {most}{size(used)} of {size(resident)} resident in {duration(took)}"
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
    read, started = backend().clear_referenced(pid), time.perf_counter()
    _watch(pid, seconds)
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for name, number, used, resident in read():
        kind = KINDS[number if number < len(KINDS) else 0]
        before = sums.get((name, kind), (0, 0))
        sums[name, kind] = before[0] + used, before[1] + resident
    return time.perf_counter() - started, _sorted(Use(*owner, *both) for owner, both in sums.items() if both[1])


def after_emptying(pid: int, seconds: float) -> tuple[float, list[Use], int, int | None]:
    """What a process brings back into memory after all of it was taken out: it pays each page with a fault.

    What is still in memory right after cannot be judged: Linux takes out no page that others map too, nor, without
    swap, a private one; and what the process used at once is back again.

    Returns:
        As referenced(), then the bytes that stayed, and the page faults meanwhile, None = not known.

    Raises:
        TargetExited: the process ended.
        Unavailable: the system refuses.
    """
    stayed, compared = empty_working_set(pid, others=True).after, Delta(pid, written=False)
    faults = _watch(pid, seconds)
    compared.finish()
    resident = {owner.name: owner.resident for owner in compared.after.by()}
    uses = _sorted(Use(one.name, one.kind, one.new, resident[one.name])
                   for one in compared.by() if one.new and one.name in resident)  # fmt: skip
    return compared.seconds, uses, stayed, faults


def _watch(pid: int, seconds: float) -> int | None:
    """Waits; returns the page faults of the process meanwhile, None = not known. Raises TargetExited: it ended."""
    target = Plugins.from_environment(third_party=False).platform.attach(pid)
    try:
        before = target.usage().faults
        if target.wait(seconds) is not None:
            raise TargetExited(f"process {pid} ended while it was watched")
        after = target.usage().faults
    finally:
        target.close()
    return None if before is None or after is None else after - before


def _sorted(uses: Iterable[Use]) -> list[Use]:
    return sorted(uses, key=lambda use: (-use.used, -use.resident, use.name))
