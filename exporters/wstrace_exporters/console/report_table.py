"""Reports as tables: all that `report`, `imports`, `unshared`, `diff` and `--over-time` print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from wstrace.analysis.cube import MEASURES, shown
from wstrace.analysis.dimensions import dimensions
from wstrace.analysis.report import Report
from wstrace.terminal import Bar, Cell, Column, Output, TextTable
from wstrace.text import estimate_mark, signed, size

if TYPE_CHECKING:
    from wstrace.analysis.compare import OverTime

#: The measure beside one of which a share says nothing: what there is now, what is no part of line 1.
_BESIDE = {"change": "second", "grown": "resident", "copied": "at_the_end"}
#: Of these measures the sign is shown in a table that is led by a change.
_SIGNED = ("grown", "change", "private", "shared")


def show(lines: Sequence[str | TextTable], *, everything: bool, by: str = ", --by DIM for other rows") -> None:
    """Prints the parts of a report; on a terminal it says how to see what is left out."""
    output = Output.standard("stdout")
    output.show(*lines, *["", f"next: -v for all columns{by}"] * (output.terminal and not everything))


def parts(
    report: Report, top: int = 10, *, everything: bool = False, output: Output | None = None
) -> list[str | TextTable]:
    """The lines of a report, and its table; everything: with all columns, and on a terminal notes of what is no loss.

    output: where this goes, so that it fits; None = stdout.
    """
    output = output or Output.standard("stdout")
    short = output.terminal and not everything
    notes = [note for note in report.notes if not (short and note.startswith("note "))]
    found = [report.answer, *(line for line in (report.completeness, *notes) if line)]
    if not everything:
        top = output.rows_beside(found, top)
    return [*found, "", table(report, top, everything=everything)] if report.rows else [*found]


def table(report: Report, top: int, *, everything: bool = False) -> TextTable:
    """The rows with the most, and the total of all: bytes, share and owner; everything: all that is known of them."""
    lead, top = report.lead, min(top, len(report.rows))
    beside = "" if lead == "copied" and not report.total["at_the_end"] else _BESIDE.get(lead, "")
    names = [lead, *(name for name in report.measures if name != lead and (everything or name == beside))]
    whole = max(report.total.get(lead, 0), 1)
    most = max((row[lead] for row in report.rows), default=0)

    def written(name: str, amount: int) -> str:
        return signed(amount) if lead == "change" and name in _SIGNED else shown(name, amount)

    def share(text: str, amount: int = 0) -> list[Cell]:
        return [] if beside else [text, *[Bar(max(amount, 0), most)] * everything]

    cells: list[list[Cell]] = []
    for row in report.rows[:top]:
        values = [written(name, row[name]) for name in names]
        marked = row["estimated"] if lead in ("resident", "change") else 0
        values[0] = estimate_mark(row[lead], marked) + values[0]
        cells.append([*values, *share(f"{row[lead] / whole:6.1%}", row[lead]), row.label])
    total = [written(name, report.total.get(name, 0)) for name in names]
    rest = f" (of {len(report.rows):,} rows)" * (len(report.rows) > top)
    cells.append([*total, *share("100.0%"), f"Total{rest}"])
    title = " and ".join(dimensions()[name].title for name in report.by)
    heads = [Column(MEASURES[name], spare=name != lead and everything) for name in names]
    heads += [] if beside else [Column("share"), *[Column("", "bar")] * everything]
    strong = [n for n, row in enumerate(report.rows[:top]) if row[lead] == most and not beside]
    return TextTable([*heads, Column(title, "name")], cells, len(cells), strong)


def over_time(found: OverTime, top: int = 10, *, everything: bool = False) -> list[str | TextTable]:
    """What grew and how fast, and a row for each moment with what changed most since the one before.

    everything: each moment, and the table of all that grew; else at most `top` moments.
    """
    report, last = found.report(), len(found.moments) - 1
    lines = parts(report, top, everything=True)
    if last < 1:
        return lines
    some = range(last + 1) if everything else np.linspace(0, last, min(top, last + 1)).astype(int).tolist()
    most = max(moment.resident for moment in found.moments)
    cells: list[list[Cell]] = []
    for nth, at in enumerate(some):
        moment, changes = found.moments[at], found.growth(some[nth - 1], at) if nth else []
        best = next((f"{signed(row['change'])} {row.label}" for row in changes if row["change"]), "")
        beside: list[Cell] = [size(moment.private), Bar(moment.resident, most)] if everything else []
        cells.append([f"{found.seconds(at):.1f} s", size(moment.resident), *beside, best])
    title = f"largest change of one {dimensions()[found.by].title}"
    more = [Column("private"), Column("", "bar")] * everything
    columns = [Column("time", spare=False), Column("resident", spare=False), *more, Column(title, "name")]
    head = len(lines) - 2 * bool(report.rows)  # an empty line, and the table of what grew
    moments: list[str | TextTable] = ["", TextTable(columns, cells, len(cells))]
    return [*lines[:head], *moments, *(lines[head:] if everything else ())]
