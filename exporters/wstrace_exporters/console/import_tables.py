"""What `wstrace imports` prints: the answer, the tree of the imports, and a table of modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from wstrace.analysis.import_report import ImportRow, Imports
from wstrace.terminal.table import Cell, Column, Styled, TextTable
from wstrace.text import number, plural, size
from wstrace_exporters.console.report_table import parts as report_parts

#: Modules below this share of all are left out of the tree, where no other size was asked for.
_LEAST = 0.01
_INDENT = "  "


def parts(told: Imports, top: int, least: int | None) -> list[str | Styled | TextTable]:
    """The lines and tables to show."""
    report = told.report()
    least = round(_LEAST * report.total["resident"]) if least is None else least
    modules = replace(report, rows=sorted(told.modules(), key=lambda row: (-row["resident"], row.label)))
    lines = report_parts(modules, top=top)
    return [*lines[:-1], _tree(told, least, report.total), *(["", lines[-1]] if top else [])]


def _tree(told: Imports, least: int, total: dict[str, int]) -> TextTable:
    """The imports within each other; what is smaller is shown as a number of modules."""
    mark = "~" * told.estimated

    def figures(own: dict[str, int], together: dict[str, int], name: str) -> list[Cell]:
        sizes = (own["resident"], together["resident"], own["private"])
        counts = (own["faults"], own["from_disk"])
        return [*(mark + size(n) for n in sizes), *(mark + number(n) for n in counts), name]

    rows = list(_shown(told.top, least))
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
        sums = {name: sum(row.all[name] for row in small) for name in small[0].all}
        one = ImportRow(("(smaller)",), tuple(sums.values()))
        one.all = sums
        yield one, depth, f"({plural(sum(1 for row in small for _ in row.walk()), 'smaller one')})"
