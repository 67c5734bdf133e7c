"""Reports as tables: all that `report`, `imports`, `unshared`, `diff` and `--over-time` print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wstrace.analysis.cube import MEASURES, shown
from wstrace.analysis.dimensions import dimensions
from wstrace.analysis.report import Report
from wstrace.terminal import Bar, Cell, Column, TextTable
from wstrace.text import estimate_mark, signed, size

if TYPE_CHECKING:
    from wstrace.analysis.compare import OverTime

#: The columns of the usual table, beside the measure that leads.
_FIRST = ("resident", "faults", "first", "second", "at_the_end")
#: Of these measures the sign is shown in a table that is led by a change.
_SIGNED = ("grown", "change", "private", "shared")


def usual(report: Report, top: int = 10) -> list[str | TextTable]:
    """What is shown of a report without --by: few columns."""
    return parts(report, top=top, names=_FIRST)


def parts(report: Report, *, top: int, names: Sequence[str] = ()) -> list[str | TextTable]:
    """The lines of a report, and its table with these columns; () = all."""
    found: list[str | TextTable] = [report.answer, *(line for line in (report.completeness, *report.notes) if line)]
    return [*found, "", table(report, top, names)] if report.rows else found


def table(report: Report, top: int, only: Sequence[str] = ()) -> TextTable:
    """The rows with the most, and the total of all; shares and bars are of the measure that leads.

    only: the columns beside that measure; () = all.
    """
    names = report.measures
    lead, change = report.lead, report.lead in ("change", "grown")
    names = [lead, *(name for name in names if name != lead and (not only or name in only))]
    whole = max(report.total.get(lead, 0), 1)
    most = max((row[lead] for row in report.rows), default=0)

    def written(name: str, amount: int) -> str:
        return signed(amount) if lead == "change" and name in _SIGNED else shown(name, amount)

    cells: list[list[Cell]] = []
    for row in report.rows[:top]:
        values = [written(name, row[name]) for name in names]
        marked = row["estimated"] if lead in ("resident", "change") else 0
        values[0] = estimate_mark(row[lead], marked) + values[0]
        share: list[Cell] = [] if change else [f"{row[lead] / whole:6.1%}", Bar(max(row[lead], 0), most)]
        cells.append([*values, *share, row.label])
    rest = len(report.rows) - top
    total = [written(name, report.total.get(name, 0)) for name in names]
    shares: list[Cell] = [] if change else ["100.0%", Bar(0, most)]
    cells.append([*total, *shares, f"Total (of {len(report.rows):,} rows)" if rest > 0 else "Total"])
    title = " and ".join(dimensions()[name].title for name in report.by)
    heads = [Column(MEASURES[name], spare=name not in (lead, *_FIRST)) for name in names]
    heads += [] if change else [Column("share"), Column("", "bar")]
    strong = [n for n, row in enumerate(report.rows[:top]) if row[lead] == most and not change]
    return TextTable([*heads, Column(title, "name")], cells, len(cells), strong)


def over_time(found: OverTime, top: int = 10) -> list[str | TextTable]:
    """What grew and how fast, a row for each moment with what changed most since the one before, and all that grew."""
    report = found.report()
    lines = parts(report, top=top, names=_FIRST)
    most = max((moment.resident for moment in found.moments), default=0)
    cells: list[list[Cell]] = []
    for at, moment in enumerate(found.moments):
        changes = found.growth(at - 1, at) if at else []
        change = moment.resident - found.moments[at - 1].resident if at else 0
        best = next((row for row in changes if row["change"]), None)
        cells.append([f"{found.seconds(at):.1f} s", size(moment.resident), size(moment.private),
                      signed(change) if at else "", Bar(moment.resident, most),
                      f"{signed(best['change'])} {best.label}" if best else ""])  # fmt: skip
    title = f"largest change of one {dimensions()[found.by].title}"
    columns = [Column("time", spare=False), Column("resident", spare=False), Column("private"), Column("change"),
               Column("", "bar"), Column(title, "name")]  # fmt: skip
    head = 2 if report.rows else 0  # an empty line, and the table of what grew
    moments: list[str | TextTable] = ["", TextTable(columns, cells, len(cells))]
    return [*lines[: len(lines) - head], *moments, *lines[len(lines) - head :]] if len(cells) > 1 else lines
