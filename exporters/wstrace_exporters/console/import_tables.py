"""What `wstrace imports` prints: the answer, the tree of the imports, and a table of modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from wstrace.analysis.blame.imports import Figures, ImportRow, Imports
from wstrace.analysis.blame.words import NAME_LIMIT, of_peak
from wstrace.terminal.table import Cell, Column, Styled, TextTable, rows_to_show
from wstrace.text import number, plural, printable, size, unit_of
from wstrace_exporters.console.blame_tables import known

#: Packages and imports that the first line tells, and the least share of one.
_TOLD, _SHARE = 3, 0.03
#: Modules below this share of all are left out of the tree, where no other size was asked for.
_LEAST = 0.01
_INDENT = "  "


def parts(told: Imports, sort: str, top: int, least: int | None) -> list[str | Styled | TextTable]:
    """The lines and tables to show."""
    whole = sum((row.own.resident for row in told.rows), 0)
    least = round(_LEAST * whole) if least is None else least
    shown: list[str | Styled | TextTable] = [Styled(answer(told), "bold"), *known(told.of)]
    shown += ["", _tree(told, least)]
    if top:
        shown += ["", _table(told, sort, top)]
    return shown


def answer(told: Imports) -> str:
    """`import pandas brings 37.0 of 62.0 MiB: numpy 16.2, pandas 12.4, ...; import requests 4.1`.

    What came between the last look and the peak is in no row, so a peak that was not seen whole is told as one: of
    `blob = bytearray(...)` in a module, a look may have met the half.
    """
    unseen = of_peak(told.of)
    return f"{_brought(told)}{f' ({unseen})' if unseen else ''}"


def _brought(told: Imports) -> str:
    total = told.of.total
    unit, divisor = unit_of(total)
    mark = "~" * told.estimated
    modules = [row for row in told.top if row.is_module and row.all.resident]
    if not modules:
        return f"imports bring nothing of {size(total)} resident that is known"
    most, *others = modules
    inside: Counter[str] = Counter()
    for row in most.walk():
        inside[row.module if row.module.startswith("(") else row.module.partition(".")[0]] += row.own.resident
    big = [(name, n) for name, n in inside.most_common(_TOLD) if n >= _SHARE * most.all.resident]
    packages = [f"{printable(name, NAME_LIMIT)} {mark}{n / divisor:,.1f}" for name, n in big]
    more = ", ..." if sum(n for _, n in big) < most.all.resident else ""
    text = f"{_name(most)} brings {mark}{most.all.resident / divisor:,.1f} of {total / divisor:,.1f} {unit}"
    text += f": {', '.join(packages)}{more}" if len(inside) > 1 else ""
    beside = [row for row in others if row.all.resident >= _SHARE * total][:_TOLD]
    return "; ".join([text, *(f"{_name(row)} {mark}{row.all.resident / divisor:,.1f}" for row in beside)])


def _name(row: ImportRow) -> str:
    name = printable(row.module, NAME_LIMIT)
    return f"import {name}" if not name.startswith("(") else name


def _tree(told: Imports, least: int) -> TextTable:
    """The imports within each other; what is smaller is told as a number of modules."""
    rows = list(_shown(told.top, least))
    cells = [_cells(told, row.own, row.all, _INDENT * depth + text) for row, depth, text in rows]
    return _with_total(told, cells, "import", [n for n, (row, depth, _) in enumerate(rows)
                                               if row.is_module and not depth])  # fmt: skip


def _shown(rows: Sequence[ImportRow], least: int, depth: int = 0) -> Iterator[tuple[ImportRow, int, str]]:
    small = ImportRow(("(smaller)",))
    count = 0
    for row in rows:
        if row.all.resident >= least or (not depth and not row.is_module):
            yield row, depth, row.module
            yield from _shown(row.children, least, depth + 1)
        else:
            small.own.add(row.all)
            small.all.add(row.all)
            count += sum(1 for _ in row.walk())
    if count:
        yield small, depth, f"({plural(count, 'smaller one')})"


def _table(told: Imports, sort: str, top: int) -> TextTable:
    """The modules that bring the most, wherever they are imported."""

    def place(row: ImportRow) -> tuple[int, str]:
        figure = {"self": row.own.resident, "all": row.all.resident, "private": row.own.private,
                  "faults": row.own.faults, "major": row.own.major}[sort]  # fmt: skip
        return -figure, row.module

    rows = sorted(told.modules(), key=place)
    n = rows_to_show(len(rows), top)
    return _with_total(
        told, [_cells(told, row.own, row.all, row.module) for row in rows[:n]], "module", [], len(rows), n
    )


def _cells(told: Imports, own: Figures, together: Figures, name: str, *, total: bool = False) -> list[Cell]:
    """The figures of a row; of a sampled trace all but the bytes of the total are estimates."""
    mark = "~" * told.estimated
    sizes = [own.resident, together.resident, own.private]
    return [*(f"{mark * (not total and n > 0)}{size(n)}" for n in sizes),
            *(f"{mark * (n > 0)}{number(n)}" for n in (own.faults, own.major)), name]  # fmt: skip


def _with_total(told: Imports, cells: list[list[Cell]], title: str, strong: list[int], rows: int = 0,
                shown: int = 0) -> TextTable:  # fmt: skip
    total = Figures()
    for row in told.rows:
        total.add(row.own)
    name = f"Total (of {number(rows)} modules)" if rows > shown else "Total"
    cells.append(_cells(told, total, total, name, total=True))
    columns = [Column("self", spare=False), Column("all", spare=False), Column("private"), Column("faults"),
               Column("from disk"), Column(title, "name")]  # fmt: skip
    return TextTable(columns, cells, len(cells), strong)
