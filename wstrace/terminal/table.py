"""The table of all commands: columns of numbers, texts and bars, then a name that is cut to the remaining width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from wstrace.terminal.elide import elide, width_of
from wstrace.text import encodable, printable

_EIGHTHS = " ▏▎▍▌▋▊▉"
_SHADES, _PLAIN_SHADES = " ░▒▓█", " .-+#"


class Bar(NamedTuple):
    """A value as a fraction of a whole, drawn as a bar. `style` is its colour on a terminal, as rich names it."""

    value: float
    whole: float
    style: str = "cyan"

    def text(self, cells: int, *, unicode: bool) -> str:
        """The bar in at most `cells` cells: blocks with a resolution of 1/8 cell, or `#`; empty only for 0."""
        if self.value <= 0 or self.whole <= 0:
            return ""
        part = min(self.value / self.whole, 1.0)
        if not unicode:
            return "#" * max(round(cells * part), 1)
        full, eighths = divmod(max(int(8 * cells * part), 1), 8)
        return "█" * full + _EIGHTHS[eighths].strip()


def has_blocks(encoding: str | None) -> bool:
    """Whether an encoding has the characters for bars, shades and the ellipsis."""
    needed = f"{_EIGHTHS}{_SHADES}…"
    return encodable(needed, encoding) == needed


def shades(*, unicode: bool) -> str:
    """Five characters from empty to full."""
    return _SHADES if unicode else _PLAIN_SHADES


BAR = 14  # the width of a bar in cells
GAP = "  "
_ROOM = 28  # bars, then columns with `spare`, are left out when names would have fewer cells than this
_NARROW = 8  # any column is left out when names would have fewer cells than this
#: The most characters of a name, with or without a terminal.
_NAME_LIMIT = 1024

Cell = str | Bar
Kind = Literal["number", "text", "bar", "name"]


def rows_to_show(total: int, top: int | None) -> int:
    """How many of `total` rows a table of at most `top` rows shows: one more, rather than a line `and 1 more`."""
    return total if top is None or total <= top + 1 else top


class Styled(NamedTuple):
    """A piece of a line and its style on a terminal, as rich names styles."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        head: the heading; "" for none.
        kind: number (right-aligned), text (left-aligned), bar (each cell is a Bar) or name (left-aligned; the only kind
            that is cut, allowed in the last column only).
        spare: whether the column may be left out on a narrow terminal, the last such column first.
    """

    head: str
    kind: Kind = "number"
    spare: bool = True


class TextTable(NamedTuple):
    """A table to show.

    Attributes:
        columns: from left to right; a line of headings is shown if any column has one.
        rows: one cell per column for each row.
        total: the number of rows including those not shown; 0 = the number of `rows`.
        strong: the indexes of the rows to emphasize.
        whole: whether to keep all columns and never cut, however narrow the terminal is.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]] = ()
    total: int = 0
    strong: Sequence[int] = ()
    whole: bool = False

    @classmethod
    def of(cls, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], top: int | None) -> TextTable:
        """A table of at most `top` of these rows."""
        return cls(columns, rows[: rows_to_show(len(rows), top)], total=len(rows))

    def lines(self, *, width: int | None, unicode: bool) -> Iterator[list[Styled]]:
        """Yields the lines: the headings, the rows, and how many rows are not shown.

        Args:
            width: the width of the terminal in cells; None = no terminal: nothing is cut or left out.
            unicode: whether the output's encoding has block characters.
        """
        columns = [_Filled(column, [row[i] for row in self.rows], unicode) for i, column in enumerate(self.columns)]
        if width is not None and not self.whole:
            columns = _fitting(columns, width)
        heads = any(column.head for column in columns)
        for number in range(-1 if heads else 0, len(self.rows)):
            style = "dim" if number < 0 else "bold" if number in self.strong else ""
            yield [piece for column in columns for piece in column.pieces(number, style, last=column is columns[-1])]
        if (hidden := self.total - len(self.rows)) > 0:
            indent = sum(column.width + len(GAP) for column in columns[:-1])
            yield [Styled(" " * indent), Styled(f"and {hidden:,} more", "dim")]


class _Filled:
    """A column with its cells as text."""

    def __init__(self, column: Column, cells: Sequence[Cell], unicode: bool) -> None:
        self.kind, self.spare, self.unicode = column.kind, column.spare, unicode
        self.head = printable(column.head)
        self.styles = [cell.style if isinstance(cell, Bar) else "" for cell in cells]
        self.cells = [
            cell.text(BAR, unicode=unicode) if isinstance(cell, Bar) else printable(cell, _NAME_LIMIT) for cell in cells
        ]
        texts = [self.head, *self.cells]
        self.width = max([BAR] * (self.kind == "bar") + [width_of(text) for text in texts])

    def fit(self, room: int) -> None:
        """Cuts the heading and the names to `room` cells."""
        (self.head,) = elide([self.head], room, unicode=self.unicode)
        self.cells = elide(self.cells, room, unicode=self.unicode)
        self.width = room

    def pieces(self, row: int, style: str, *, last: bool) -> Iterator[Styled]:
        """Yields the cell of a row (-1: the heading), padded to the column's width, and the gap to the next column."""
        text = self.head if row < 0 else self.cells[row]
        fill = " " * (self.width - width_of(text))
        own = (self.styles[row] if row >= 0 else "") or (style if row < 0 or self.kind == "name" else "")
        if self.kind == "number":
            yield Styled(fill)
            fill = ""
        yield Styled(text, own)
        if not last:
            yield Styled(fill + GAP)


def _fitting(columns: list[_Filled], width: int) -> list[_Filled]:
    """The columns that fit into `width` cells: a column is left out rather than a number cut."""

    def room() -> int:
        return width - sum(column.width + len(GAP) for column in columns[:-1])

    last = columns[-1]
    for kinds, spare, least in ((("bar",), True, _ROOM), (("number", "text", "bar"), True, _ROOM),
                                (("number", "text", "bar"), False, _NARROW)):  # fmt: skip
        for column in columns[-2:0:-1]:
            if room() >= min(last.width, least):
                break
            if column.kind in kinds and (column.spare or not spare):
                columns.remove(column)
    if last.width > room() and last.kind == "name":
        last.fit(room())
    return columns
