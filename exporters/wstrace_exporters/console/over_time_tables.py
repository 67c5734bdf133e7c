"""What `wstrace report --over-time` prints: what grew and how fast, and a line for each moment."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.analysis.blame.changes import Change
from wstrace.analysis.blame.over_time import OverTime
from wstrace.terminal.bar import Bar
from wstrace.terminal.table import Cell, Column, Styled, TextTable
from wstrace.text import duration, size
from wstrace_exporters.console.blame_tables import TITLES
from wstrace_exporters.console.diff_tables import phrase_of, signed

#: From this share of all that grew on, one row is the answer; else as many as this are told.
_MOST, _TOLD = 0.8, 3


def parts(told: OverTime, top: int) -> list[str | Styled | TextTable]:
    """The lines and tables to show."""
    if len(told.moments) < 2:
        return ["the trace has no two snapshots of resident pages: record with -s working_set:interval=1"]
    shown: list[str | Styled | TextTable] = [Styled(answer(told), "bold")]
    if not all(moment.complete for moment in told.moments):
        shown.append(Styled("records are missing: rows may hold bytes of an older owner", "yellow"))
    grown = [row for row in told.growth() if row.change]
    shown += ["", _moments(told)]
    if len(grown) > 1:
        cells: list[list[Cell]] = [
            [signed(row.change), size(row.first.resident), size(row.second.resident), row.label] for row in grown[:top]
        ]
        columns = [Column("change", spare=False), Column("first"), Column("last"), Column(TITLES[told.by], "name")]
        shown += ["", TextTable(columns, cells, len(grown))]
    return shown


def answer(told: OverTime) -> str:
    """`+9.4 MiB in 10.0 s (1.0 MiB/s): parse_record leak.py:12`."""
    seconds = told.seconds()
    change = told.moments[-1].resident - told.moments[0].resident
    whole = f"{signed(change)} in {duration(seconds)}"
    if change:
        whole += f" ({size(abs(change) / seconds)}/s)"
    return f"{whole}{_whose(told.growth(), change)}"


def _whose(rows: Sequence[Change], change: int) -> str:
    """`: parse_record leak.py:12`, or the rows that changed most into the direction of the whole."""
    same = [row for row in rows if row.change * change > 0]
    if not same:
        return ""
    if abs(same[0].change) >= _MOST * sum(abs(row.change) for row in same):
        return f": {same[0].label}"
    return ": " + ", ".join(f"{signed(row.change)} {phrase_of(row, 'line')}" for row in same[:_TOLD])


def _moments(told: OverTime) -> TextTable:
    """A row for each moment, with what changed most since the one before."""
    most = max(moment.resident for moment in told.moments)
    cells: list[list[Cell]] = []
    for at, moment in enumerate(told.moments):
        changes = told.growth(at - 1, at) if at else []
        change = moment.resident - told.moments[at - 1].resident if at else 0
        best = next((row for row in changes if row.change), None)
        cells.append([f"{told.seconds(at):.1f} s", size(moment.resident), size(moment.private),
                      signed(change) if at else "", Bar(moment.resident, most),
                      f"{signed(best.change)} {best.label}" if best else ""])  # fmt: skip
    columns = [Column("time", spare=False), Column("resident", spare=False), Column("private"), Column("change"),
               Column("", "bar"), Column(f"largest change of one {TITLES[told.by]}", "name")]  # fmt: skip
    return TextTable(columns, cells, len(cells))
