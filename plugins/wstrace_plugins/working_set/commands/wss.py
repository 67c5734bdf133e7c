"""`wstrace wss PID`: what a process uses of its memory in a time."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import click

from wstrace.cli.common import Duration, json_option, print_json
from wstrace.cli.privilege import debug_privilege
from wstrace.errors import UsageError
from wstrace.terminal.output import Output
from wstrace.terminal.table import Column, TextTable
from wstrace.text import duration, plural, printable, size
from wstrace_plugins.working_set.commands.empty import confirm
from wstrace_plugins.working_set.used import Window, after_emptying, windows

_CLEARED = (
    "the referenced bits of process {0} were cleared {1}: where memory is short, the kernel takes pages that were not "
    "used since for unused ones"
)
_COARSE = (
    "a huge page counts whole, of files too; so may pages that a fault maps beside the touched one, and pages of files "
    "that other processes use"
)


@click.command()
@click.argument("pid", type=int)
@click.option("--for", "seconds", type=Duration(), required=True, metavar="TIME", help="For how long, as 10s or 2m.")
@click.option(
    "--every", type=Duration(), metavar="TIME", help="What is used in each such window; else in all the time."
)
@click.option(
    "--by-emptying", is_flag=True, help="Take all pages out of memory, and see which come back (Windows too)."
)
@click.option("--yes", is_flag=True, help="With --by-emptying: do not ask.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="So many files at most.")
@json_option
@debug_privilege
def wss(
    pid: int, seconds: float, every: float | None, by_emptying: bool, yes: bool, top: int, as_json: bool
) -> None:  # fmt: skip
    """Show what a process uses of its memory: the true working set, by file and kind of memory.

    By the referenced bits of its pages (Linux): they are cleared, and the processor sets those of the pages that are
    used again. Page faults alone cannot show this, as a page that is in memory already takes none: --by-emptying
    takes all pages out first, which costs the process a fault for each that it uses.

    \b
    wstrace wss 4711 --for 10s
    wstrace wss 4711 --for 1m --every 5s
    """
    if pid == os.getpid():
        raise UsageError("this is the process of wstrace itself")
    if not seconds:
        raise UsageError("--for 0: nothing is used in no time", "write for how long, as 10s")
    if every is not None and (by_emptying or every > seconds):
        why = "with --by-emptying there is one window" if by_emptying else "--every is longer than --for"
        raise UsageError(why, "leave --every out")
    if by_emptying:
        if not yes:
            confirm(pid, "wss --by-emptying")
        done, window, faults = after_emptying(pid, seconds)
        found, method, facts = [window], "emptying", {"stayed": done.after, "faults": faults}
        cost = "" if faults is None else f", which cost it {plural(faults, 'page fault')}"
        notes = [f"its pages were taken out of memory{cost}"]
        if done.after:
            notes.append(f"{size(done.after)} were still in memory right after: whether they were used is not known")
    else:
        found, method, facts = list(windows(pid, seconds, every)), "referenced bits", {}
        notes = [_CLEARED.format(pid, "once" if len(found) == 1 else plural(len(found), "time")), _COARSE]
    whole = [window for window in found if not window.ended]
    if len(whole) < len(found):
        notes.append("it ended in the last window, or executed another program: what it used there is not known")
    if as_json:
        print_json({"schema": 1, "pid": pid, "method": method, "notes": notes, **facts,
                    "windows": [_plain(window) for window in found]})  # fmt: skip
        return
    parts: list[str | TextTable] = [_over_time(whole), ""] if len(whole) > 1 else []
    Output.standard("stdout").show(_headline(whole), "", *parts, _by_file(whole, top))
    for note in notes:
        click.echo(f"wstrace: note: {note}", err=True)


def _headline(found: list[Window]) -> str:
    """The answer in a line: of the window in which most was used."""
    most = max(found, key=lambda window: window.used)
    upto = {use: "at most " * most.may_be_of_others(use) for use in most.uses if use.used}
    largest = ", ".join(f"{upto[use]}{size(use.used)} {printable(use.name)}" for use in most.uses[:3] if use.used)
    of = f"used {max(upto.values(), default='')}{size(most.used)} of {size(most.resident)} resident"
    of += f" in {duration(most.seconds)}"
    if len(found) > 1:
        average = size(sum(window.used for window in found) / len(found))
        of += f", the most of {plural(len(found), 'window')} ({average} on average)"
    return f"{of}: {largest}" if largest else of


def _over_time(found: list[Window]) -> TextTable:
    rows = [[f"{w.begin:.1f} s", size(w.used), size(w.resident), _share(w.used, w.resident)] for w in found]
    return TextTable([Column("from"), Column("used"), Column("resident"), Column("share")], rows)


def _by_file(found: list[Window], top: int) -> TextTable:
    """Of the window in which most was used, by file."""
    most = max(found, key=lambda window: window.used)
    rows = [[size(use.used), size(use.resident), _share(use.used, use.resident), use.kind, use.name]
            for use in most.uses]  # fmt: skip
    columns = [Column("used"), Column("resident"), Column("share"), Column("kind", "text"), Column("file", "name")]
    return TextTable.of(columns, rows, top)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _plain(window: Window) -> dict[str, Any]:
    known = None if window.ended else window.used
    plain = asdict(window)
    del plain["emptied"]  # the method says it
    return {**plain, "used": known, "resident": None if window.ended else window.resident}
