"""`wstrace imports`: what the imports of a Python program bring, of a command, a running process or a trace file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from wstrace.cli.common import Size, print_json
from wstrace.terminal import Cell, Column, TextTable
from wstrace.text import number, plural, size
from wstrace_exporters.console.recorded import TraceWords, recording_options, trace_of

if TYPE_CHECKING:
    from wstrace.analysis.imports import ImportRow, Imports

#: Modules below this share of all are left out of the tree, where no other size was asked for.
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
            print_json(found.report().as_dict())
        else:
            Output.standard("stdout").show(*parts(found, options["top"], options["least"]))
    return code


def parts(found: Imports, top: int, least: int | None) -> list[str | TextTable]:
    """The lines and tables to show."""
    from wstrace_exporters.console.report_table import parts as report_parts

    report = found.report()
    least = round(_LEAST * report.total["resident"]) if least is None else least
    modules = replace(report, rows=sorted(found.modules(), key=lambda row: (-row["resident"], row.label)))
    lines = report_parts(modules, top=top)
    return [*lines[:-1], _tree(found, least, report.total), *(["", lines[-1]] if top else [])]


def _tree(found: Imports, least: int, total: dict[str, int]) -> TextTable:
    """The imports within each other; what is smaller is shown as a number of modules."""
    mark = "~" * found.estimated

    def figures(own: dict[str, int], together: dict[str, int], name: str) -> list[Cell]:
        sizes = (own["resident"], together["resident"], own["private"])
        counts = (own["faults"], own["from_disk"])
        return [*(mark + size(n) for n in sizes), *(mark + number(n) for n in counts), name]

    rows = list(_shown(found.top, least))
    cells = [figures(row.values, row.all, _INDENT * depth + text) for row, depth, text in rows]
    cells.append(figures(total, total, "Total"))
    columns = [Column("self", spare=False), Column("all", spare=False), Column("private"), Column("faults"),
               Column("from disk"), Column("import", "name")]  # fmt: skip
    return TextTable(columns, cells, len(cells), [n for n, (row, depth, _) in enumerate(rows)
                                                  if row.is_module and not depth])  # fmt: skip


def _shown(rows: Sequence[ImportRow], least: int, depth: int = 0) -> Iterator[tuple[ImportRow, int, str]]:
    small = [row for row in rows if row.all["resident"] < least and (depth or row.is_module)]
    for row in rows:
        if row not in small:
            yield row, depth, row.label
            yield from _shown(row.children, least, depth + 1)
    if small:
        from wstrace.analysis.imports import ImportRow

        sums = {name: sum(row.all[name] for row in small) for name in small[0].all}
        one = ImportRow(("(smaller)",), tuple(sums.values()))
        one.all = sums
        yield one, depth, f"({plural(sum(1 for row in small for _ in row.walk()), 'smaller one')})"
