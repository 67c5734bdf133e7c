"""What `report` prints: the first lines, and tables with a column for each measure."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.analysis.dimensions import dimensions
from wstrace.analysis.measures import measures, shown
from wstrace.analysis.report import Report
from wstrace.terminal.bar import Bar
from wstrace.terminal.table import Cell, Column, Styled, TextTable
from wstrace.text import estimate_mark

#: The columns of the usual table, beside the measure that leads.
_FIRST = ("resident", "faults")


def usual(report: Report, top: int = 10) -> list[str | Styled | TextTable]:
    """What is shown of a report where no table was asked for: few columns."""
    return parts(report, top=top, names=_FIRST)


def parts(report: Report, *, top: int, names: Sequence[str] = ()) -> list[str | Styled | TextTable]:
    """The lines of a report, and its table with these columns; () = all."""
    lines = [Styled(report.answer, "bold"), *(Styled(line, "dim") for line in (report.completeness, *report.notes))]
    return [*lines, "", table(report, top, names)] if report.rows else [*lines]


def table(report: Report, top: int, only: Sequence[str] = ()) -> TextTable:
    """The rows with the most, and the total of all; shares and bars are of the measure that leads.

    Args:
        only: the columns beside that measure; () = all.
    """
    known, names = measures(), report.measures
    lead = report.lead
    names = [lead, *(name for name in names if name != lead and (not only or name in only))]
    whole = max(report.total.get(lead, 0), 1)
    most = max((row.values.get(lead, 0) for row in report.rows), default=0)
    cells: list[list[Cell]] = []
    for row in report.rows[:top]:
        marked = row.values.get("estimated", 0) if lead == "resident" else 0
        values = [shown(known[name], row.values.get(name, 0)) for name in names]
        values[0] = estimate_mark(row.values.get(lead, 0), marked) + values[0]
        share = row.values.get(lead, 0) / whole
        cells.append([*values, f"{share:6.1%}", Bar(max(row.values.get(lead, 0), 0), most), row.label])
    rest = len(report.rows) - top
    total = [shown(known[name], report.total.get(name, 0)) for name in names]
    cells.append([*total, "100.0%", Bar(0, most), f"Total (of {len(report.rows):,} rows)" if rest > 0 else "Total"])
    title = " and ".join(dimensions()[name].title for name in report.by)
    heads = [Column(known[name].title, spare=name not in (lead, *_FIRST)) for name in names]
    strong = [n for n, row in enumerate(report.rows[:top]) if row.values.get(lead, 0) == most]
    return TextTable([*heads, Column("share"), Column("", "bar"), Column(title, "name")], cells, len(cells), strong)
