"""What `wstrace diff` prints: the answer, what makes it doubtful, and tables of changes."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.analysis.blame.changes import Amount, Change
from wstrace.analysis.blame.comparison import CAUSES, Comparison
from wstrace.analysis.blame.words import NAME_LIMIT, moment_of_both, name_of
from wstrace.errors import UsageError
from wstrace.terminal.table import Cell, Column, Styled, TextTable, rows_to_show
from wstrace.text import estimate_mark, number, printable, size, unit_of
from wstrace_exporters.console.blame_tables import TITLES

#: Rows that the first line tells, and the least share of all changes of one.
_TOLD, _SHARE = 3, 0.05


def usual(found: Comparison) -> tuple[str, ...]:
    """The views that are shown where none was asked for."""
    return ("file",) if found.why_not("package") else ("package", "function")


def parts(found: Comparison, by: str | None, top: int, *, everything: bool) -> list[str | Styled | TextTable]:
    """The lines and tables to show. Raises UsageError when the runs cannot be compared by a view that is named."""
    views = (by,) if by else usual(found)
    why = found.why_not(views[0])
    if why and by and not found.why_not("file"):
        raise UsageError(f"not compared by {by}: {why}", "use --by file")
    shown: list[str | Styled | TextTable] = [Styled(answer(found, views[0]), "bold")]
    if not by and (reason := found.why_not("package")):
        shown.append(Styled(reason, "yellow"))
    elif why:
        shown.append(Styled(why, "yellow"))
    shown += [Styled(doubt, "yellow") for doubt in found.doubts]
    if why:
        return shown
    for view in views:
        rows = found.rows(view)
        if by or len(rows) > 1:
            shown += ["", table(found, view, rows, top, everything=everything)]
    return shown


def answer(found: Comparison, view: str) -> str:
    """`+12.1 MiB resident at the peak (29.6 -> 41.7 MiB): +9.8 from pandas (import), +2.0 by load app.py:31, ...`."""
    programs = "two different programs: " if found.programs else ""
    moment = moment_of_both(found)
    if not found.whole:
        first, second = found.sizes
        return f"{programs}{signed(second - first)} {moment} ({_from_to(first, second)}); whose it is is not known"
    if not found.change and not any(row.change for row in found.rows(view)):
        return f"{programs}no change: {size(found.second.total)} resident {moment}"
    whole = f"{signed(found.change)} resident {moment} ({_from_to(found.first.total, found.second.total)})"
    phrases: dict[str, int] = {}
    doubtful: dict[str, int] = {}
    for row in found.rows("line" if view in CAUSES else view):
        phrase = phrase_of(row, view)
        phrases[phrase] = phrases.get(phrase, 0) + row.change
        doubtful[phrase] = doubtful.get(phrase, 0) + row.estimated
    order = sorted(phrases, key=lambda phrase: (-abs(phrases[phrase]), phrase))
    changed = sum(map(abs, phrases.values()))
    told = [phrase for phrase in order[:_TOLD] if abs(phrases[phrase]) >= _SHARE * changed] or order[:1]
    _, divisor = unit_of(abs(found.change) or max(map(abs, phrases.values()), default=0))

    def shown(n_bytes: int) -> str:
        return f"{n_bytes / divisor:+,.1f}"

    words = [f"{estimate_mark(phrases[one], doubtful[one], shown)}{shown(phrases[one])} {one}" for one in told]
    more = ", ..." if any(phrases[phrase] for phrase in order if phrase not in told) else ""
    return f"{programs}{whole}: {', '.join(words)}{more}"


def phrase_of(row: Change, view: str) -> str:
    """Whose a change is, as a sentence has it: `by load app.py:31`, `from pandas (import)`, `in [heap]`."""
    if view not in CAUSES:
        return f"in {printable(row.label, NAME_LIMIT)}"
    if row.imports and row.package:
        return f"from {printable(row.package, NAME_LIMIT)}{row.release} (import)"
    if row.reason:
        return row.label
    name = name_of(row.label)
    return f"from {name.removeprefix('package ')}" if name.startswith(("package ", "standard ")) else f"by {name}"


def table(found: Comparison, view: str, rows: Sequence[Change], top: int, *, everything: bool) -> TextTable:
    """The rows that changed most, and the totals."""
    rows = rows if everything else [row for row in rows if row.change or row.private]
    total = Change("Total", "Total", Amount(found.first.total, found.first.private),
                   Amount(found.second.total, found.second.private))  # fmt: skip
    kept = rows[: rows_to_show(len(rows), top)]
    total.label += f" (of {number(len(rows))} rows)" * (len(rows) > len(kept))
    estimated = any(estimate_mark(row.change, row.estimated, signed) for row in kept)
    cells: list[list[Cell]] = []
    for row in [*kept, total]:
        mark = estimate_mark(row.change, row.estimated, signed) or " " * estimated
        cells.append([f"{mark}{signed(row.change)}", size(row.first.resident), size(row.second.resident),
                      signed(row.private), signed(row.shared), row.label + row.release])  # fmt: skip
    columns = [Column("change", spare=False), Column("first"), Column("second"), Column("private"), Column("shared"),
               Column({**TITLES, "module": "module"}[view], "name")]  # fmt: skip
    return TextTable(columns, cells, len(cells))


def signed(n_bytes: int) -> str:
    """A change in bytes: `+9.4 MiB`, `0 B`."""
    return ("+" if n_bytes > 0 else "-" if n_bytes < 0 else "") + size(abs(n_bytes))


def _from_to(first: int, second: int) -> str:
    """`29.6 -> 41.7 MiB`, or each with its own unit."""
    (unit, divisor), (other, _) = unit_of(first), unit_of(second)
    return f"{first / divisor:,.1f} -> {size(second)}" if unit == other != "B" else f"{size(first)} -> {size(second)}"
