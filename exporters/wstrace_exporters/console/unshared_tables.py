"""What `wstrace unshared` prints."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.analysis.blame.unshared import Unshared
from wstrace.analysis.blame.words import name_of
from wstrace.terminal.bar import Bar
from wstrace.terminal.table import Cell, Column, Styled, TextTable
from wstrace.text import number, plural, size, unit_of
from wstrace_exporters.console.blame_tables import TITLES, known

_USUAL = ("line", "function", "file")
_TOLD = 3


def parts(told: Unshared, views: Sequence[str], top: int) -> list[str | Styled | TextTable]:
    """The lines and tables to show."""
    more = ""
    if told.total and told.ended:
        more = "; what they copied while they ended counts too"  # an interpreter's end writes to what it frees
    lines = known(told.blame, more, pages=False)
    shown: list[str | Styled | TextTable] = [Styled(answer(told), "bold"), *lines]
    if not told.total:
        return shown
    for view in [tuple(views)] if views else [(view,) for view in _USUAL]:
        rows = [(row.label, n, end) for row, n, end in told.rows_apart(*view)]
        shown += ["", _table(" and ".join(TITLES[one] for one in view), rows, told, top)]
    if not views:
        forks = [(f"{fork.child} from {fork.parent}", fork.n_bytes - fork.at_the_end, fork.at_the_end)
                 for fork in told.forks()]  # fmt: skip
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
    if not told.total:
        return "nothing was un-shared: no process wrote to a page that it shared since a fork"
    while_it_ran = told.total - told.at_the_end
    unit, divisor = unit_of(while_it_ran)
    rows = [(row, n) for row, n, _ in told.rows_apart("line")[:_TOLD] if n]
    named = ", ".join(f"{n / divisor:,.1f} by {name_of(row.label)}" for row, n in rows)
    more = ", ..." if sum(n for _, n in rows) < while_it_ran else ""
    bound = "at least " if told.at_least else "~" if told.estimated else ""
    several = f"{number(told.ending)} process{'es' * (told.ending != 1)}"
    end = f"; {size(told.at_the_end)} more as {several} ended" if told.at_the_end else ""
    head = f"{bound}{while_it_ran / divisor:,.1f} {unit} un-shared after {plural(told.forked, 'fork')}"
    return f"{head}{': ' * bool(named)}{named}{more}{end}"


def _table(title: str, rows: Sequence[tuple[str, int, int]], told: Unshared, top: int) -> TextTable:
    """The rows (label, bytes while it ran, bytes at its end) with the most; the shares are of what it copied first."""
    apart, mark = bool(told.at_the_end), "~" if told.estimated else ""
    total = told.total - told.at_the_end
    most = rows[0][1] if rows else 0
    cells: list[list[Cell]] = [
        [mark + size(n), *[mark + size(end)] * apart, f"{n / max(total, 1):6.1%}", Bar(n, most), label]
        for label, n, end in rows[:top]]  # fmt: skip
    rest = f" (of {number(len(rows))} rows)" if len(rows) > top else ""
    ends = [mark + size(told.at_the_end)] * apart
    cells.append([mark + size(total), *ends, "100.0%", Bar(0, most), f"Total{rest}"])
    heads = [Column("un-shared", spare=False), *[Column("at the end")] * apart]
    return TextTable([*heads, Column("share"), Column("", "bar"), Column(title, "name")], cells, len(cells), [0])
