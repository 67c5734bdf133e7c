"""`wstrace wss PID`: what a process uses of its memory in a time."""

from __future__ import annotations

import os

import click

from wstrace.cli.common import Duration, debug_privilege, json_option, print_json
from wstrace.errors import UsageError
from wstrace.terminal import Column, Output, TextTable
from wstrace.text import duration, plural, printable, size
from wstrace_plugins.working_set.commands.empty import confirm
from wstrace_plugins.working_set.used import after_emptying, referenced

_NOTES = (
    "the referenced bits of process {0} were cleared: where memory is short, the kernel takes pages that were not "
    "used since for unused ones",
    "a huge page counts whole, of files too; so may pages that a fault maps beside the touched one, and pages of files "
    "that other processes use",
)


@click.command()
@click.argument("pid", type=int)
@click.option("--for", "seconds", type=Duration(), required=True, metavar="TIME", help="For how long, as 10s or 2m.")
@click.option(
    "--by-emptying", is_flag=True, help="Take all pages out of memory, and see which come back (Windows too)."
)
@click.option("--yes", is_flag=True, help="With --by-emptying: do not ask.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="So many files at most.")
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
        done, found, faults = after_emptying(pid, seconds)
        method, most, facts = "emptying", "", {"stayed": done.after, "faults": faults}
        cost = "" if faults is None else f", which cost it {plural(faults, 'page fault')}"
        notes = [f"its pages were taken out of memory{cost}"]
        if done.after:
            notes.append(f"{size(done.after)} were still in memory right after: whether they were used is not known")
    else:
        found, method, most, facts = referenced(pid, seconds), "referenced bits", "at most ", {}
        notes = [note.format(pid) for note in _NOTES]
    if as_json:
        uses = [use._asdict() for use in found.uses]
        print_json(
            {"schema": 2, "pid": pid, "method": method, "notes": notes, **facts, **found._asdict(), "uses": uses}
        )
        return
    largest = ", ".join(f"{size(use.used)} {printable(use.name)}" for use in found.uses[:3] if use.used)
    line = f"used {most}{size(found.used)} of {size(found.resident)} resident in {duration(found.seconds)}"
    columns = [Column("used"), Column("resident"), Column("share"), Column("kind", "text"), Column("file", "name")]
    rows = [[size(use.used), size(use.resident), f"{use.used / use.resident:.0%}", use.kind, use.name]
            for use in found.uses]  # fmt: skip
    Output.standard("stdout").show(f"{line}: {largest}" if largest else line, "", TextTable.of(columns, rows, top))
    for note in notes:
        click.echo(f"wstrace: note: {note}", err=True)
