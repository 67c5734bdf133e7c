"""`wstrace imports`: what the imports of a Python program bring, of a command, a running process or a trace file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click

from wstrace.cli.common import Size, print_json
from wstrace.terminal import Cell, Column, Output, TextTable
from wstrace.text import number, plural, size
from wstrace_exporters.console.recorded import TraceWords, recording_options, trace_of

if TYPE_CHECKING:
    from wstrace.analysis.imports import ImportRow
    from wstrace.analysis.report import Report

#: Modules below this share of all are left out of the tree, where no other size was wanted.
_LEAST = 0.01
_INDENT = "  "
#: The imports within each other that are shown without -v.
_LEVELS = 2


@click.command(cls=TraceWords, options_metavar="[OPTIONS]")
@click.option("--top", type=click.IntRange(0), default=10, show_default=True, help="Rows of a table; JSON has all.")
@click.option("--min", "least", type=Size(), metavar="100KiB", help="The whole tree from this size on.")
@click.option("--at", default="peak", metavar="peak|exit|start|MARK", show_default=True, help="The moment.")
@click.option("--pid", "pids", type=click.IntRange(0), multiple=True, help="Only this process; may be repeated.")
@recording_options
def imports(ctx: click.Context, /, target: tuple[str, ...], **options: Any) -> int:
    """Show what imported Python modules bring into memory.

    \b
    wstrace imports -- python3 app.py   at its peak
    wstrace imports x.wst --min 1MiB    of a recorded trace
    """
    with trace_of(target, options, literal=ctx.meta["wstrace.literal"]) as (trace, code):
        from wstrace.analysis.imports import imports as imports_of
        from wstrace_exporters.console.report_table import show

        found = imports_of(trace, options["at"], options["pids"])
        if options["as_json"]:
            print_json(found.as_dict())
        else:
            least = options["least"]
            everything = options["verbose"] or least is not None
            show(parts(found, options["top"], least, everything=everything), everything=everything, by="")
    return code


def parts(found: Report, top: int, least: int | None, *, everything: bool) -> list[str | TextTable]:
    """The lines and tables to show; everything: the whole tree, and a table of the modules, with all columns."""
    from wstrace.analysis.imports import modules
    from wstrace_exporters.console.report_table import parts as report_parts

    rows = cast("list[ImportRow]", found.rows)
    lines = report_parts(replace(found, rows=modules(rows)), top, everything=everything)
    if not everything:
        top = Output.standard("stdout").rows_beside([line for line in lines if isinstance(line, str)], top)
        largest = sorted((row for row in rows if len(row.path) <= _LEVELS), key=lambda row: -row.all["resident"])[:top]
        return [*lines[:-1], _tree([row for row in rows if row in largest], found)]
    least = round(_LEAST * found.total["resident"]) if least is None else least
    shown = [row for row in rows if row.all["resident"] >= least or not (row.is_module or len(row.path) > 1)]
    return [*lines[:-1], _tree(shown, found, everything=True), *(["", lines[-1]] if top else [])]


def _tree(shown: list[ImportRow], found: Report, *, everything: bool = False) -> TextTable:
    """The imports within each other; everything: those that are smaller are one row."""
    mark, rows = "~" * found.more["estimated"], cast("list[ImportRow]", found.rows)

    def figures(own: dict[str, int], together: dict[str, int], name: str) -> list[Cell]:
        if not everything:
            share = together["resident"] / max(found.total["resident"], 1)
            return [mark + size(together["resident"]), f"{share:6.1%}", name]
        sizes = (own["resident"], together["resident"], own["private"])
        counts = (own["faults"], own["from_disk"])
        return [*(mark + size(n) for n in sizes), *(mark + number(n) for n in counts), name]

    cells = [figures(row.values, row.all, _INDENT * (len(row.path) - 1) + row.label) for row in shown]
    rest = len(rows) - len(shown)
    if rest and everything:
        small = {name: n - sum(row[name] for row in shown) for name, n in found.total.items()}
        cells.append(figures(small, small, f"({plural(rest, 'smaller one')})"))
    hidden = f" (of {plural(len(rows), 'import')})" * bool(rest and not everything)
    cells.append(figures(found.total, found.total, f"Total{hidden}"))
    columns = [Column("self", spare=False), Column("all", spare=False), Column("private"), Column("faults"),
               Column("from disk"), Column("import", "name")]  # fmt: skip
    few = [Column("all", spare=False), Column("share"), columns[-1]]
    strong = [n for n, row in enumerate(shown) if row.is_module and len(row.path) == 1]
    return TextTable(columns if everything else few, cells, len(cells), strong)
