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
_NARROW = 64  # a terminal below this many cells has no room for bars
#: where nothing cuts a line to a width, a name may still not run on for ever
_NAME_LIMIT = 1024


@dataclass(slots=True)
class Table:
    """A table as it is to be shown.

    Attributes:
        title: what the last column holds: `file of the page`.
        heads: heads of the number columns.
        rows: (numbers as text, value that the bar shows, share 0..1 or None, name) each.
        total: how many rows there are, shown or not.
    """

    title: str
    heads: Sequence[str]
    rows: list[tuple[Sequence[str], float, float | None, str]] = field(default_factory=list)
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

    bars = width is None or width >= _NARROW
    grid = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=True, header_style="dim")
    for head in table.heads:
        grid.add_column(head, justify="right", no_wrap=True)
    shares = any(share is not None for _, _, share, _ in table.rows)
    if shares:
        grid.add_column("share", justify="right", no_wrap=True)
    if bars:
        grid.add_column("", width=BAR, no_wrap=True)
    numbers = [len(table.heads[i]) for i in range(len(table.heads))]
    for cells, *_ in table.rows:
        numbers = [max(a, len(b)) for a, b in zip(numbers, cells, strict=True)]
    room = None if width is None else width - sum(numbers) - 2 * len(numbers) - 8 * shares - (BAR + 2) * bars
    grid.add_column(Text(table.title), no_wrap=True, overflow="ignore")
    most = max((value for _, value, _, _ in table.rows), default=0)
    for cells, value, share, name in table.rows:
        row: list[RenderableType] = [Text(cell) for cell in cells]
        if shares:
            row.append(Text("" if share is None else f"{share:6.1%}"))
        if bars:
            row.append(_bar(value, most, unicode=unicode))
        row.append(Text(shorten(name, room, unicode=unicode), style="bold" if value == most else ""))
        grid.add_row(*row)
    hidden = table.total - len(table.rows)
    if hidden > 0:
        blank = [""] * (len(table.heads) + shares + bars)
        grid.add_row(*blank, Text(f"and {hidden:,} more", style="dim"))
    return grid


def _bar(value: float, most: float, *, unicode: bool) -> RenderableType:
    from rich.bar import Bar
    from rich.text import Text

    if not unicode:
        cells = round(BAR * value / most) if most else 0
        return Text("#" * max(cells, value > 0), style="cyan")
    return Bar(max(most, 1), 0, max(value, most / BAR / 8 if value else 0), width=BAR, color="cyan", bgcolor="default")


def shorten(name: str, room: int | None, *, unicode: bool) -> str:
    """The name made printable, its beginning left out where it is wider than the room (at least 12 cells)."""
    text = printable(name, _NAME_LIMIT)
    if room is None:
        return text
    from rich.cells import cell_len, set_cell_size

    room = max(room, 12)
    if cell_len(text) <= room:
        return text
    mark = "\u2026" if unicode else "..."
    return mark + set_cell_size(text[::-1], room - len(mark))[::-1].lstrip()
