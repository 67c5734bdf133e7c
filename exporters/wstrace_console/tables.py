"""Tables with bars. The name stands last, so that no width of a name from outside can shift a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wstrace.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable

BAR = 14  # cells
_ROOM = 28  # cells that names have at least, before bars have any
_LEAST = 16  # cells that names have at least, before numbers beside the first have any
_GAP = 2
#: where nothing cuts a line to a width, a name may still not run on for ever
_NAME_LIMIT = 1024
_ENDLESS = 8192


@dataclass(slots=True)
class Table:
    """A table as it is to be shown.

    Attributes:
        title: what the last column holds: `file of the page`.
        heads: heads of the number columns.
        rows: (numbers as text, value that the bar shows, share 0..1, name) each.
        total: how many rows there are, shown or not.
    """

    title: str
    heads: Sequence[str]
    rows: list[tuple[Sequence[str], float, float, str]] = field(default_factory=list)
    total: int = 0


def render(table: Table, *, width: int | None, unicode: bool) -> RichTable:
    """The table for rich.

    Args:
        table: what is shown.
        width: cells of the terminal; None = no terminal: names are not cut.
        unicode: the output's encoding has block characters.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    columns = [[head, *(cells[i] for cells, *_ in table.rows)] for i, head in enumerate(table.heads)]
    columns.append(["share", *(f"{share:6.1%}" for _, _, share, _ in table.rows)])

    def room() -> int:
        return _ENDLESS if width is None else width - sum(_GAP + max(map(len, column)) for column in columns)

    while room() < _LEAST and len(columns) > 1:
        columns.pop()  # a narrow terminal: better fewer numbers than cut ones
    bars = room() >= BAR + _GAP + _ROOM
    left = room() - (BAR + _GAP) * bars
    grid = RichTable(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=True, header_style="dim")
    for head, *_ in columns:
        grid.add_column(head, justify="right", no_wrap=True)
    if bars:
        grid.add_column("", width=BAR, no_wrap=True)
    grid.add_column(Text(shorten(table.title, left, unicode=unicode)), no_wrap=True, overflow="ignore")
    most = max((value for _, value, _, _ in table.rows), default=0)
    for i, (_, value, _, name) in enumerate(table.rows, 1):
        row: list[RenderableType] = [Text(column[i]) for column in columns]
        row += [_bar(value, most, unicode=unicode)] * bars
        row.append(Text(shorten(name, left, unicode=unicode), style="bold" if value == most else ""))
        grid.add_row(*row)
    if (hidden := table.total - len(table.rows)) > 0:
        grid.add_row(*[""] * (len(columns) + bars), Text(f"and {hidden:,} more", style="dim"))
    return grid


def _bar(value: float, most: float, *, unicode: bool) -> RenderableType:
    from rich.bar import Bar
    from rich.text import Text

    if not unicode:
        cells = round(BAR * value / most) if most else 0
        return Text("#" * max(cells, value > 0), style="cyan")
    return Bar(max(most, 1), 0, max(value, most / BAR / 8 if value else 0), width=BAR, color="cyan", bgcolor="default")


def shorten(name: str, room: int, *, unicode: bool) -> str:
    """The name made printable, its beginning left out where it is wider than the room (at least 8 cells)."""
    from rich.cells import cell_len, set_cell_size

    text, room = printable(name, _NAME_LIMIT), max(room, 8)
    if cell_len(text) <= room:
        return text
    mark = "\u2026" if unicode else "..."
    return mark + set_cell_size(text[::-1], room - len(mark))[::-1].lstrip()
