"""What `wstrace report` prints: the answer, how complete it is, and tables in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from wstrace.analysis.blame.causes import NO_LINE
from wstrace.analysis.blame.recording import first_lines
from wstrace.analysis.blame.rows import Blame, BlameRow
from wstrace.analysis.blame.words import answer, brought, completeness, why_no_pages
from wstrace.analysis.proposals import callers, groups, not_python
from wstrace.analysis.stacks import FOREIGN
from wstrace.terminal.bar import Bar
from wstrace.terminal.table import Cell, Column, Styled, TextTable
from wstrace.text import estimate_mark, number, size

TITLES = {"line": "own line", "function": "function", "package": "package", "file": "file of the page",
           "kind": "kind of memory", "process": "process", "cgroup": "control group", "thread": "thread"}  # fmt: skip
#: Below this share of a row its copied part is not told beside its name, and from this one on it is the row.
_LITTLE, _NEARLY_ALL = 0.1, 0.9
#: The views that are shown where none was asked for.
_USUAL = ("line", "package", "file", "kind")


def parts(told: Blame, views: Sequence[str], sort: str, top: int) -> list[str | Styled | TextTable]:
    """The lines and tables to show."""
    first = [Styled(line, "dim" if at else "bold") for at, line in enumerate(first_lines(told))]
    of_groups = [Styled(line, "dim") for line in groups(views, told.of.inputs.cgroups_known)]
    if not told.total:
        return [*first, *_without_pages(told, views, sort, top, of_groups)]
    shown: list[str | Styled | TextTable] = [*first, Styled(answer(told), "bold"), *known(told), *of_groups]
    tables = [tuple(views)] if views else [(view,) for view in _USUAL]
    for view in tables:
        rows = told.rows(*view, sort=sort)
        if views or len(rows) > 1:
            shown += ["", table(told, " and ".join(TITLES[one] for one in view), rows, top)]
    if not views and len(np.unique(told.of.inputs.runs["space"])) > 1:
        shown += ["", table(told, TITLES["process"], told.rows("process", sort=sort), top)]
    return shown


def known(told: Blame, more: str = "", *, pages: bool = True, rows: Iterable[BlameRow] | None = None) -> list[Styled]:
    """The lines below the first one: how complete it is, and what the records lack, with what lifts that.

    Args:
        rows: of the table by line that is shown; None = that of blame.
    """
    lines = [completeness(told, pages=pages) + more, *told.of.info.obstacles, *_not_python(told, rows)]
    return [Styled(line, "dim") for line in lines]


def _not_python(told: Blame, rows: Iterable[BlameRow] | None) -> list[str]:
    faults = told.of.inputs.faults
    foreign = np.isin(faults["stack_how"], FOREIGN)
    # Where whole stacks are wanted the column is there without any.
    native = "native_stack" in faults and bool(faults["native_stack"].any())
    if native and 2 * int(np.count_nonzero(faults["stack"])) < len(foreign):
        first = next((row for row in (told.rows("line") if rows is None else rows) if not row.reason), None)
        return callers() if first is not None and first.label.endswith(NO_LINE) else []
    return not_python(int(foreign.sum()), len(foreign), native=native)


def _without_pages(
    told: Blame, views: Sequence[str], sort: str, top: int, more: Sequence[Styled]
) -> list[str | Styled | TextTable]:
    """Why no page is known to be there, and who brought what while it ran; `more` stands before the table."""
    why = why_no_pages(told)
    if not len(told.of.history.faults):
        return [why]
    sort = "brought" if sort == "resident" else sort
    title = " and ".join(TITLES[one] for one in views or ("line",))
    rows = told.rows(*(views or ("line",)), sort=sort)
    lines = [Styled(f"{brought(told)}; {why}", "bold"), *known(told, pages=False), *more]
    return [*lines, "", table(told, title, rows, top, of="brought")]


def _loader(row: BlameRow, loaded_by: str) -> str:
    """` (copied: loaded by load app.py:3)`; of a row of which a part is copied how much, and nothing of a small one."""
    share = row.copied / max(row.resident, 1)
    if share < _LITTLE:
        return ""
    part = "" if share >= _NEARLY_ALL else f"{share:.0%} "
    return f" ({part}copied: loaded by {loaded_by.removesuffix(NO_LINE)})"


def table(told: Blame, title: str, rows: Sequence[BlameRow], top: int, of: str = "resident") -> TextTable:
    """The rows with the most, and the total of all; the shares are of that column."""
    estimated = any(estimate_mark(row.resident, row.estimated) for row in rows[:top])
    columns = [("resident", "resident"), ("private", "private"), ("shared", "shared"), ("pss", "pss"),
               ("copied", "copied"), ("written", "written"), ("brought", "brought"), ("again", "again"),
               ("from disk", "from_disk")]  # fmt: skip
    samples = any(row.samples for row in rows)
    kept = [(head, name) for head, name in columns if name in (of, "brought")
            or (of == "resident" and name == "private")
            or any(getattr(row, name) for row in rows)]  # fmt: skip
    most = max((getattr(row, of) for row in rows), default=0)
    whole = sum(getattr(row, of) for row in rows)
    short = {row.whole: row.label for row in rows}
    cells: list[list[Cell]] = []
    for row in rows[:top]:
        loader = _loader(row, short[row.loaded_by]) if row.loaded_by in short else ""
        mark = estimate_mark(row.resident, row.estimated) or " " * estimated
        cells.append([*(f"{mark * (name == 'resident')}{size(round(getattr(row, name) or 0))}" for _, name in kept),
                      *[number(row.samples)] * samples,
                      f"{getattr(row, of) / max(whole, 1):6.1%}", Bar(getattr(row, of), most),
                      row.label + loader])  # fmt: skip
    total = [size(round(sum(getattr(row, name) or 0 for row in rows))) for _, name in kept]
    rest = len(rows) - top
    total += [number(sum(row.samples for row in rows))] * samples
    cells.append([*total, "100.0%", Bar(0, most), f"Total (of {number(len(rows))} rows)" if rest > 0 else "Total"])
    heads = [Column(head, spare=name not in ("resident", "private")) for head, name in kept]
    heads += [Column("samples")] * samples
    return TextTable([*heads, Column("share"), Column("", "bar"), Column(title, "name")], cells, len(cells),
                     [n for n, row in enumerate(rows[:top]) if getattr(row, of) == most])  # fmt: skip
