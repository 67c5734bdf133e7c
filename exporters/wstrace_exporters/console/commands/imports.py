"""`wstrace imports`: what the imports of a Python program bring, of a command, a running process or a trace file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click

from wstrace.cli.common import Size, print_json
from wstrace.terminal import Cell, Column, TextTable
from wstrace.text import number, plural, size
from wstrace_exporters.console.recorded import TraceWords, recording_options, trace_of

if TYPE_CHECKING:
    from wstrace.analysis.imports import ImportRow
    from wstrace.analysis.report import Report

#: Modules below this share of all are left out of the tree, where no other size was wanted.
_LEAST = 0.01
_INDENT = "  "


@click.command(cls=TraceWords, options_metavar="[OPTIONS]")
@click.option("--top", type=click.IntRange(0), default=10, show_default=True, help="Rows of the table; JSON has all.")
@click.option("--min", "least", type=Size(), metavar="100KiB", help="Least size in the tree (1 % of all).")
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
        from wstrace.terminal import Output

        found = imports_of(trace, options["at"], options["pids"])
        if options["as_json"]:
            print_json(found.as_dict())
        else:
            Output.standard("stdout").show(*parts(found, options["top"], options["least"]))
    return code


def parts(found: Report, top: int, least: int | None) -> list[str | TextTable]:
    """The lines and tables to show."""
    from wstrace.analysis.imports import modules
    from wstrace_exporters.console.report_table import parts as report_parts

    rows = cast("list[ImportRow]", found.rows)
    lines = report_parts(replace(found, rows=modules(rows)), top=top)
    least = round(_LEAST * found.total["resident"]) if least is None else least
    return [*lines[:-1], _tree(rows, least, found), *(["", lines[-1]] if top else [])]


def _tree(rows: list[ImportRow], least: int, found: Report) -> TextTable:
    """The imports within each other; those that are smaller are one row."""
    mark = "~" * found.more["estimated"]

    def figures(own: dict[str, int], together: dict[str, int], name: str) -> list[Cell]:
        sizes = (own["resident"], together["resident"], own["private"])
        counts = (own["faults"], own["from_disk"])
        return [*(mark + size(n) for n in sizes), *(mark + number(n) for n in counts), name]

    shown = [row for row in rows if row.all["resident"] >= least or not (row.is_module or len(row.path) > 1)]
    cells = [figures(row.values, row.all, _INDENT * (len(row.path) - 1) + row.label) for row in shown]
    if small := [row for row in rows if row not in shown]:
        rest = {name: sum(row[name] for row in small) for name in found.total}
        cells.append(figures(rest, rest, f"({plural(len(small), 'smaller one')})"))
    cells.append(figures(found.total, found.total, "Total"))
    columns = [Column("self", spare=False), Column("all", spare=False), Column("private"), Column("faults"),
               Column("from disk"), Column("import", "name")]  # fmt: skip
    strong = [n for n, row in enumerate(shown) if row.is_module and len(row.path) == 1]
    return TextTable(columns, cells, len(cells), strong)
