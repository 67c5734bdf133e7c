"""What `wstrace blame` prints: the answer, how complete it is, and tables in bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wstrace.analysis.blame.causes import NO_LINE
from wstrace.analysis.blame.rows import Blame, BlameRow
from wstrace.terminal.bar import Bar
from wstrace.terminal.table import Cell, Column, Styled, TextTable
from wstrace.text import number, plural, printable, size

TITLES = {"line": "own line", "function": "function", "package": "package", "file": "file of the page",
           "kind": "kind of memory", "process": "process"}  # fmt: skip
#: The views that are shown where none was asked for.
_USUAL = ("line", "package", "file", "kind")
#: Rows that the first line tells, and the least share of one.
_TOLD, _SHARE = 3, 0.03
NAME_LIMIT = 60
#: From this share of the peak on, a composition counts as that of the peak.
_WHOLE = 0.995


def parts(told: Blame, views: Sequence[str], sort: str, top: int) -> list[str | Styled | TextTable]:
    """The lines and tables to show."""
    if not told.total:
        return [
            "no resident pages are in the trace: record a command, or with -s working_set (wstrace doctor says why)"
        ]
    shown: list[str | Styled | TextTable] = [Styled(answer(told), "bold"), Styled(completeness(told), "dim")]
    tables = [tuple(views)] if views else [(view,) for view in _USUAL]
    for view in tables:
        rows = told.rows(*view, sort=sort)
        if views or len(rows) > 1:
            shown += ["", table(told, " and ".join(TITLES[one] for one in view), rows, top)]
    if not views and len(np.unique(told.of.inputs.runs["space"])) > 1:
        shown += ["", table(told, TITLES["process"], told.rows("process", sort=sort), top)]
    return shown


def answer(told: Blame) -> str:
    """`142.9 MiB resident at the exit: 50.1 by load_frame app.py:31, 37.0 by import pandas, ...`."""
    rows = told.rows("line")
    unit, divisor = unit_of(told.total)
    big = [row for row in rows if row.resident >= _SHARE * told.total][:_TOLD]
    named = [row for row in big if not row.reason] or big
    parts = [f"{'~' * bool(row.estimated)}{row.resident / divisor:,.1f} {_by(row)}" for row in named]
    more = ", ..." if sum(row.resident for row in named) < told.total else ""
    spaces = len(np.unique(told.of.inputs.runs["space"]))
    moment = moment_words(told.of.inputs.moment)
    if spaces > 1 and told.of.inputs.moment == "exit":
        moment = "at the last look at each"  # only the command itself is read at its exit, and they do not end at once
    kinds = f" in {', '.join(told.kinds)}" if told.kinds else ""
    whole = f"{told.total / divisor:,.1f} {unit} resident{kinds} {printable(moment, NAME_LIMIT)}"
    whole += f" in {number(spaces)} processes" if spaces > 1 else ""
    peak = told.of.inputs.of_peak
    if peak and not told.kinds and told.total < _WHOLE * peak:
        share = told.total / peak
        whole += f" (composition of {told.total / divisor:,.1f} of {peak / divisor:,.1f} {unit}, {share:.0%})"
    return f"{whole}: {', '.join(parts)}{more}"


def moment_words(moment: str) -> str:
    """The moment of a composition, as a sentence has it."""
    return {"exit": "at the exit", "peak": "at the peak", "start": "at the start", "now": "now",
            "end": "at the end"}.get(moment, f"at {moment}")  # fmt: skip


def _by(row: BlameRow) -> str:
    label = name_of(row.label)
    return label if row.reason else f"by {label}"


def name_of(label: str) -> str:
    """A label as a sentence has it."""
    label = label.removesuffix(NO_LINE)
    if label.startswith("(package ") or label.startswith("(standard "):
        label = label[1:].removesuffix(")")
    return printable(label, NAME_LIMIT)


def unit_of(n_bytes: int) -> tuple[str, float]:
    """The binary unit that a size is told in, and its bytes."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if n_bytes >= 1 << power:
            return unit, float(1 << power)
    return "B", 1.0


def completeness(told: Blame, *, pages: bool = True) -> str:
    """`complete: 27,490 faults, 0 lost`, or what is missing."""
    of = told.of
    faults = len(of.history.faults)
    unknown = sum(row.resident for row in told.rows("line") if row.reason)
    words = []
    if of.lost:
        words.append(f"{plural(of.lost, 'record')} lost")
    if of.sampled > 1:
        words.append(f"only one of {of.sampled} faults was recorded")
    if of.assumed:
        words.append(f"not recorded: what was {', '.join(of.assumed)}: rows may hold bytes of an older owner")
    if of.unsure and not of.lost:
        words.append(f"{size(of.unsure)} may have had an older owner, as not all that unmaps was recorded")
    if told.of.inputs.swapped:
        words.append(f"{size(of.inputs.swapped * of.page_size)} swapped out")
    head = (
        f"{plural(faults, 'fault')}, {number(of.lost)} lost"
        if not words
        else f"{plural(faults, 'fault')}; {'; '.join(words)}"
    )
    share = unknown / max(told.total, 1)
    if not pages:
        return f"{'complete: ' * (not words)}{head}"
    return f"{'complete: ' * (not words)}{head}; {size(unknown)} ({share:.1%}) without a known fault"


def table(told: Blame, title: str, rows: Sequence[BlameRow], top: int) -> TextTable:
    """The rows with the most, and the total of all."""
    estimated = any(row.estimated for row in rows)
    columns = [("resident", "resident"), ("private", "private"), ("shared", "shared"), ("copied", "copied"),
               ("written", "written"), ("brought", "brought"), ("again", "again"),
               ("from disk", "from_disk")]  # fmt: skip
    samples = any(row.samples for row in rows)
    kept = [(head, name) for head, name in columns if name in ("resident", "private", "brought")
            or any(getattr(row, name) for row in rows)]  # fmt: skip
    most = max((row.resident for row in rows), default=0)
    short = {row.whole: row.label for row in rows}
    cells: list[list[Cell]] = []
    for row in rows[:top]:
        loader = f", loaded by {short[row.loaded_by]}" if row.loaded_by in short else ""
        mark = "~" if row.estimated else " " if estimated else ""
        cells.append([*(f"{mark * (name == 'resident')}{size(getattr(row, name))}" for _, name in kept),
                      *[number(row.samples)] * samples,
                      f"{row.resident / max(told.total, 1):6.1%}", Bar(row.resident, most),
                      row.label + loader])  # fmt: skip
    total = [size(sum(getattr(row, name) for row in rows)) for _, name in kept]
    rest = len(rows) - top
    total += [number(sum(row.samples for row in rows))] * samples
    cells.append([*total, "100.0%", Bar(0, most), f"Total (of {number(len(rows))} rows)" if rest > 0 else "Total"])
    heads = [Column(head, spare=name not in ("resident", "private")) for head, name in kept]
    heads += [Column("samples")] * samples
    return TextTable([*heads, Column("share"), Column("", "bar"), Column(title, "name")], cells, len(cells),
                     [n for n, row in enumerate(rows[:top]) if row.resident == most])  # fmt: skip
