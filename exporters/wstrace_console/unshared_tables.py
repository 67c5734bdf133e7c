"""What `wstrace unshared` prints."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.analysis.blame.unshared import Unshared
from wstrace.analysis.blame.words import name_of, unit_of
from wstrace.terminal.bar import Bar
from wstrace.terminal.table import Cell, Column, Styled, TextTable
from wstrace.text import number, plural, size
from wstrace_console.blame_tables import TITLES, known

_USUAL = ("line", "function", "file")
_TOLD = 3


def parts(told: Unshared, views: Sequence[str], top: int) -> list[str | Styled | TextTable]:
    """The lines and tables to show."""
    more = ""
    if told.total and told.ended:
        more = "; what they copied while they ended counts too"  # an interpreter's end writes to what it frees
    shown: list[str | Styled | TextTable] = [Styled(answer(told), "bold"), *known(told.blame, more, pages=False)]
    if told.perhaps:
        shown.append(Styled(f"{perhaps(told)}: which faults bring one is in no record", "dim"))
    if not told.total:
        return shown
    for view in [tuple(views)] if views else [(view,) for view in _USUAL]:
        rows = [(row.label, n) for row, n in told.rows(*view)]
        shown += ["", _table(" and ".join(TITLES[one] for one in view), rows, told, top)]
    if not views:
        forks = [(f"{fork.child} from {fork.parent}", fork.n_bytes) for fork in told.forks()]
        shown += ["", _table("fork", forks, told, top)]
    return shown


def answer(told: Unshared) -> str:
    """`45.9 MiB un-shared after 2 forks: 34.4 by search app.py:12, 11.5 by search app.py:11`."""
    if told.unseen and not told.total:
        whose = name_of(told.of.name_of(told.unseen[0]))
        return (
            f"what was un-shared is not known: no snapshot tells what {whose} had in memory before the trace; "
            "wstrace unshared PID takes one"
        )
    if told.earlier:
        return "what was un-shared is not known: no process forked in the trace, only perhaps before it"
    if not told.total and told.perhaps:
        return f"what was un-shared is not known: {perhaps(told)}"
    if not told.total:
        return "nothing was un-shared: no process wrote to a page that it shared since a fork"
    unit, divisor = unit_of(told.total)
    rows = told.rows("line")[:_TOLD]
    named = ", ".join(f"{n / divisor:,.1f} by {name_of(row.label)}" for row, n in rows)
    more = ", ..." if sum(n for _, n in rows) < told.total else ""
    bound = "at least " if told.at_least else "~" if told.estimated else ""
    return f"{bound}{told.total / divisor:,.1f} {unit} un-shared after {plural(told.forked, 'fork')}: {named}{more}"


def perhaps(told: Unshared) -> str:
    """`up to 39.8 MiB more if they were parts of huge pages`."""
    return f"up to {size(told.perhaps)} more if these were parts of huge pages"


def _table(title: str, rows: Sequence[tuple[str, int]], told: Unshared, top: int) -> TextTable:
    total, mark = told.total, "~" if told.estimated else ""
    most = rows[0][1] if rows else 0
    cells: list[list[Cell]] = [
        [mark + size(n), f"{n / max(total, 1):6.1%}", Bar(n, most), label] for label, n in rows[:top]]  # fmt: skip
    rest = f" (of {number(len(rows))} rows)" if len(rows) > top else ""
    cells.append([mark + size(total), "100.0%", Bar(0, most), f"Total{rest}"])
    columns = [Column("un-shared", spare=False), Column("share"), Column("", "bar"), Column(title, "name")]
    return TextTable(columns, cells, len(cells), [0])
