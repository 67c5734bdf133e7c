"""What `report` prints: the first lines, and tables with a column for each measure."""

from __future__ import annotations

from wstrace.analysis.dimensions import dimensions
from wstrace.analysis.measures import measures, shown
from wstrace.analysis.report import Report
from wstrace.terminal.bar import Bar
from wstrace.terminal.table import Cell, Column, Styled, TextTable

#: The tables that are shown where none was asked for.
_USUAL = ("line", "package", "file", "kind")
#: Columns that stay on a narrow terminal.
_FIRST = ("grown", "resident", "private", "faults")


def usual(first: Report, top: int = 10) -> list[str | Styled | TextTable]:
    """What is shown of a report by line where no table was asked for."""
    others = [first.by_others((one,)) for one in (*_USUAL[1:], "process")]
    return parts(first, *(one for one in others if len(one.rows) > 1), top=top)


def parts(*reports: Report, top: int) -> list[str | Styled | TextTable]:
    """The lines of the first report, and the tables of all."""
    first = reports[0]
    lines = [Styled(first.answer, "bold"), Styled(first.completeness, "dim"), *(Styled(n, "dim") for n in first.notes)]
    tables = [part for one in reports if one.rows for part in ("", table(one, top))]
    return [*lines, *tables]


def table(report: Report, top: int) -> TextTable:
    """The rows with the most, and the total of all; shares and bars are of the measure that leads."""
    known, names = measures(), report.measures
    lead = report.lead
    names = [lead, *(name for name in names if name != lead)]
    whole = max(report.total.get(lead, 0), 1)
    most = max((row.values.get(lead, 0) for row in report.rows), default=0)
    cells: list[list[Cell]] = []
    for row in report.rows[:top]:
        marked = lead == "resident" and row.values.get("estimated", 0)
        values = [shown(known[name], row.values.get(name, 0)) for name in names]
        if marked and shown(known[lead], row.values[lead] - marked) != values[0]:
            values[0] = f"~{values[0]}"
        share = row.values.get(lead, 0) / whole
        cells.append([*values, f"{share:6.1%}", Bar(max(row.values.get(lead, 0), 0), most), row.label])
    rest = len(report.rows) - top
    total = [shown(known[name], report.total.get(name, 0)) for name in names]
    cells.append([*total, "100.0%", Bar(0, most), f"Total (of {len(report.rows):,} rows)" if rest > 0 else "Total"])
    title = " and ".join(dimensions()[name].title for name in report.by)
    heads = [Column(known[name].title, spare=name not in _FIRST) for name in names]
    strong = [n for n, row in enumerate(report.rows[:top]) if row.values.get(lead, 0) == most]
    return TextTable([*heads, Column("share"), Column("", "bar"), Column(title, "name")], cells, len(cells), strong)
