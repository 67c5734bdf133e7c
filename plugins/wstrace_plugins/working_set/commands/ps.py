"""`wstrace ps`: processes with their working sets, as a list or as trees with their sums."""

from __future__ import annotations

import click

from wstrace.cli.common import json_option, print_json
from wstrace.errors import TargetExited
from wstrace.terminal import Column, Output, TextTable
from wstrace.text import plural, printable, size
from wstrace_plugins.working_set.backend import backend
from wstrace_plugins.working_set.process_tree import Sums, processes, sums

#: The width of a line that goes to no terminal: command lines may take thousands of cells.
_WIDTH = 80


@click.command()
@click.argument("pids", type=int, nargs=-1, metavar="[PID]...")
@click.option("--tree", is_flag=True, help="Children below their parents, and the sums of all.")
@click.option("--top", type=click.IntRange(1), help="At most this many processes.")
@click.option("--wide", is_flag=True, help="Whole command lines; otherwise lines fit the terminal, or 80 columns.")
@json_option
def ps(pids: tuple[int, ...], tree: bool, top: int | None, wide: bool, as_json: bool) -> None:
    """Show the processes with their working sets: resident, private, shared and proportional bytes (pss).

    With a PID only that process, with --tree also what descends from it. What a tree has in memory is three numbers:
    rss_sum counts a page once for each process that has it; pss counts a page that others have too for its part;
    distinct counts each page once (root).

    Trees show command lines, as ps(1) does: their arguments may be secret.
    """
    system = backend()
    found = list(processes(system, pids))
    if pids and not found:
        raise TargetExited(f"there is no process {', '.join(map(str, pids))}")
    parts: list[str | TextTable] = []
    if tree:
        total = sums(system, found)
        if as_json:
            print_json({"schema": 1, "total": total._asdict(), "processes": [p._asdict() for p in found]})
            return
        names = ["  " * process.depth + process.title for process in found]
        parts = [_headline(total), *([f"distinct not known: {total.why}"] if total.why else []), ""]
    else:
        found = [process for process in found if not pids or process.pid in pids]
        found.sort(key=lambda process: (-process.resident, process.pid))
        names = [process.name for process in found]
        if as_json:
            print_json([process._asdict() for process in found[:top]])
            return
    large = any(process.large for process in found[:top])
    columns = [Column("pid", spare=False), Column("working set", spare=False), Column("private"), Column("shared"),
               Column("pss", spare=False), *[Column("large", spare=False)] * large, Column("user", "text"),
               Column("name", "name")]  # fmt: skip
    rows = [[str(p.pid), *map(_size, (p.resident, p.private, p.shared, p.pss)), *[_size(p.large)] * large,
             printable(p.user, 16), name] for p, name in zip(found[:top], names[:top], strict=True)]  # fmt: skip
    Output.standard("stdout", width=_WIDTH).show(*parts, TextTable(columns, rows, whole=wide))


def _headline(total: Sums) -> str:
    """The sums of all in a line."""
    of = plural(total.processes, "process")
    refused = f" (of {total.processes - total.refused} of them)" if total.refused and total.pss is not None else ""
    pss = "pss not known" if total.pss is None else f"{size(total.pss)} pss{refused}"
    distinct = "" if total.distinct is None else f", {size(total.distinct)} distinct"
    return f"{of}: {pss}, {size(total.rss_sum)} rss_sum{distinct}"


def _size(n_bytes: int | None) -> str:
    return "-" if n_bytes is None else size(n_bytes)
