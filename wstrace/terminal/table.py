"""The table of all commands: columns of numbers, texts and bars, then a name that is cut to the remaining width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from wstrace.terminal.elide import elide, width_of
from wstrace.text import encodable, printable

_EIGHTHS = " ▏▎▍▌▋▊▉"
_SHADES, _PLAIN_SHADES = " ░▒▓█", " .-+#"


class Bar(NamedTuple):
    """A value as a fraction of a whole, drawn as a bar."""

    value: float
    whole: float

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
_STYLES = {"bold": 1, "dim": 2, "bar": 36}

Cell = str | Bar
Kind = Literal["number", "text", "bar", "name"]


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
        """A table of at most `top` of these rows; of one more, rather than with a line `and 1 more`."""
        shown = rows if top is None or len(rows) <= top + 1 else rows[:top]
        return cls(columns, shown, total=len(rows))

    def lines(self, *, width: int | None, unicode: bool, colors: bool = False) -> Iterator[str]:
        """Yields the lines: the headings, the rows, and how many rows are not shown.

        Args:
            width: the width of the terminal in cells; None = no terminal: nothing is cut or left out.
            unicode: whether the output's encoding has block characters.
            colors: whether to mark headings, strong rows and bars as a terminal shows them.
        """
        columns = self.columns
        texts = [[printable(column.head)] for column in columns]
        for row in self.rows:
            for column, cell in zip(texts, row, strict=True):
                text = cell.text(BAR, unicode=unicode) if isinstance(cell, Bar) else printable(cell, _NAME_LIMIT)
                column.append(text)
        widths = [max([BAR * (column.kind == "bar"), *map(width_of, cells)])
                  for column, cells in zip(columns, texts, strict=True)]  # fmt: skip
        shown = list(range(len(columns)))
        if width is not None and not self.whole:
            shown, room = _fitting(columns, widths, width)
            if widths[-1] > room and columns[-1].kind == "name":
                head, *names = texts[-1]
                texts[-1] = [*elide([head], room, unicode=unicode), *elide(names, room, unicode=unicode)]
        for number in range(0 if any(column.head for column in columns) else 1, len(self.rows) + 1):
            line = []
            for at in shown:
                text, kind = texts[at][number], columns[at].kind
                fill = " " * (widths[at] - width_of(text))
                if colors and text:
                    strong = kind == "name" and number - 1 in self.strong
                    text = styled(text, "dim" if not number else "bar" if kind == "bar" else "bold" * strong)
                line.append(fill + text if kind == "number" else text if at == shown[-1] else text + fill)
            yield GAP.join(line).rstrip()
        if (hidden := self.total - len(self.rows)) > 0:
            yield " " * sum(widths[at] + len(GAP) for at in shown[:-1]) + f"and {hidden:,} more"


def styled(text: str, style: str) -> str:
    """The text as a terminal shows it in a style: `dim`, `bold`, `bar`; "" = as it is. Source: ECMA-48, 8.3.117."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style else text


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int) -> tuple[list[int], int]:
    """The columns that fit into `width` cells, and the room of the last one; they go rather than a number is cut."""
    shown, last = list(range(len(columns))), widths[-1]

    def room() -> int:
        return width - sum(widths[at] + len(GAP) for at in shown[:-1])

    for kinds, spare, least in ((("bar",), True, _ROOM), (("number", "text", "bar"), True, _ROOM),
                                (("number", "text", "bar"), False, _NARROW)):  # fmt: skip
        for at in shown[-2:0:-1]:
            if room() >= min(last, least):
                break
            if columns[at].kind in kinds and (columns[at].spare or not spare):
                shown.remove(at)
    return shown, room()
