"""Prints for people: the table of all commands, names that are too wide, and the stream with its poor encodings.

Every line, heading and cell passes wstrace.text.printable here, once. Nothing else in wstrace uses rich.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, TextIO

import click

from wstrace.errors import OutputError
from wstrace.text import encodable, printable, without_parameters

#: Tags of a compiler or interpreter, which do not help to identify a file.
_NOISE = r"\.cpython-\d+[a-z]*-[\w-]+(?=\.so)|\.abi3(?=\.so)|\[abi:\w+\]"

#: What tables are drawn with: the ellipsis, lines and blocks.
_DRAWN = "[ -~\u2026\u2500-\u259f]*"
#: between the names of a table by two keys, and of `file  by  module`
_BESIDE = "  "
_PART = 10  # the least cells for each of them
#: between the frames of a stack, innermost first
_CALLED_BY = " < "


def width_of(text: str) -> int:
    """The number of terminal cells that the text takes."""
    if text.isascii() or re.fullmatch(_DRAWN, text):
        return len(text)
    from rich.cells import cell_len  # The import takes 5 ms.

    return cell_len(text)


def elide(names: Sequence[str], room: int, *, unicode: bool = True) -> list[str]:
    """Each name shortened to at most `room` cells.

    A name that is too wide loses the parameters and return types of C++ functions first, then tags such as
    `.cpython-311-x86_64-linux-gnu`, then its middle. Names that would look the same are numbered.
    names: printable names; equal names get equal results. room: cells; less than 8 counts as 8. unicode: whether to
    mark what is left out by an ellipsis, instead of `...`.
    """
    mark, room = "…" if unicode else "...", max(room, 8)
    labels = {name: name for name in dict.fromkeys(names) if width_of(name) <= room}
    taken = set(labels.values())
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        if name not in labels:
            groups.setdefault(_cut(_shorter(name, room), room, mark), []).append(name)
    for label, alike in groups.items():
        found = [label] if len(alike) == 1 and label not in taken else _numbered(label, len(alike), room, taken)
        taken.update(found)
        labels.update(zip(alike, found, strict=True))
    return [labels[name] for name in names]


def _shorter(name: str, room: int) -> str:
    """The name without C++ signatures and then without tags, as far as it is too wide."""
    for spare in (_without_signature, lambda text: re.sub(_NOISE, "", text)):
        if width_of(name) > room:
            name = spare(name)
    return name


def _without_signature(name: str) -> str:
    """`lib.so!a::b` for `lib.so!int a::b(int, C<d>) const`; sections (`lib.so!.text(14)`) and paths are unchanged."""
    module, bang, function = name.partition("!")
    return f"{module}!{without_parameters(function)}" if bang and not module.startswith("/") else name


def _cut(text: str, room: int, mark: str) -> str:
    """The text without its middle: the start gets a third of the room, or less if a path's last part needs more.

    Where words follow the last part, the text is a command line: it begins with its program.
    """
    if width_of(text) <= room:
        return text
    if 1 < len(parts := text.split(_BESIDE)) <= room // _PART:
        return _parts(parts, room, mark)
    if label := _fewer_frames(text.split(_CALLED_BY), room, mark):
        return label
    _, slash, last = text.rpartition("/")
    last_part = width_of(slash + last) if slash and " " not in last else 0
    left = max(min((room - len(mark)) // 3, room - len(mark) - last_part), 0)
    head, tail = start_of(text, left), _last(text, room - len(mark) - left)
    cut = tail.find("/")  # let the tail begin with a whole component of the path, if that costs little
    if 0 < cut <= len(tail) // 3:
        tail = tail[cut:]
    return f"{head}{mark}{tail}"


def _parts(parts: Sequence[str], room: int, mark: str) -> str:
    """Names beside each other, each shortened: those that are short give the others what they do not need."""
    free = room - len(_BESIDE) * (len(parts) - 1)
    found = list(parts)
    for done, number in enumerate(sorted(range(len(parts)), key=lambda number: width_of(parts[number]))):
        found[number] = _cut(re.sub(_NOISE, "", parts[number]), max(free // (len(parts) - done), 0), mark)
        free -= width_of(found[number])
    return _BESIDE.join(found)


def _fewer_frames(frames: Sequence[str], room: int, mark: str) -> str:
    """The innermost frames of a stack that fit, if possible beside its outermost one; "" if none fits, or no stack."""
    for outermost in (frames[-1:], []):
        for n in range(len(frames) - 2, 0, -1):
            label = _CALLED_BY.join([*frames[:n], mark, *outermost])
            if width_of(label) <= room:
                return label
    return ""


def _numbered(label: str, n: int, room: int, taken: set[str]) -> list[str]:
    """The label n times, each with its own number."""
    found: list[str] = []
    number = 1
    while len(found) < n:
        tail = f"#{number}"
        text = start_of(label, room - len(tail)) + tail
        if text not in taken:
            found.append(text)
        number += 1
    return found


def start_of(text: str, cells: int) -> str:
    """The start of the text, at most `cells` cells."""
    if text.isascii():
        return text[: max(cells, 0)]
    from rich.cells import set_cell_size

    return set_cell_size(text, max(cells, 0)).rstrip()


def _last(text: str, cells: int) -> str:
    """The end of the text, at most `cells` cells."""
    if text.isascii():
        return text[len(text) - max(cells, 0) :]
    return start_of(text[::-1], cells)[::-1]


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
_USUAL = 10  # rows of a table that has more than a terminal has room for only where more were wanted
_AROUND = 7  # lines around these: two that are empty, its heads and its sum, two that say what next, a prompt
_NARROW = 8  # any column is left out when names would have fewer cells than this
#: The most characters of a name, with or without a terminal.
_NAME_LIMIT = 1024
_STYLES = {"bold": 1, "dim": 2, "bar": 36}

Cell = str | Bar
Kind = Literal["number", "text", "bar", "name"]


class Column(NamedTuple):
    """A column of a table.

    head: the heading; "" for none. kind: number (right-aligned), text (left-aligned), bar (each cell is a Bar) or name
    (left-aligned; the only kind that is cut, allowed in the last column only). spare: whether the column may be left
    out on a narrow terminal, the last such column first.
    """

    head: str
    kind: Kind = "number"
    spare: bool = True


class TextTable(NamedTuple):
    """A table to show.

    columns: from left to right; a line of headings is shown if any column has one. rows: one cell per column for each
    row. total: the number of rows including those not shown; 0 = the number of `rows`. strong: the indexes of the rows
    to emphasize. whole: whether to keep all columns and never cut, however narrow the terminal is.
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

        width: the width of the terminal in cells; None = no terminal: nothing is cut or left out. unicode: whether the
        output's encoding has block characters. colors: whether to mark headings, strong rows and bars as a terminal
        shows them.
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


class Output:
    """A text stream for reports.

    terminal: whether it is a terminal, so that lines are cut to its width and styles are used. unicode: whether its
    encoding has block characters and an ellipsis. broken: whether its reader closed the pipe (`| head`) or it was
    closed; later text is discarded.
    """

    def __init__(self, stream: TextIO, *, name: str = "the terminal", width: int | None = None) -> None:
        self.stream, self._width = stream, width
        self.name = name
        self.broken = False
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        try:
            self.terminal = stream.isatty()
        except ValueError:  # closed
            self.terminal, self.broken = False, True
        self.unicode = has_blocks(self.encoding)

    @classmethod
    def standard(cls, name: str, *, width: int | None = None) -> Output:
        """The present stdout or stderr of this process; nowhere when it has none, as under pythonw.

        width: the cells of a line where it is no terminal; None = as many as it takes.
        """
        return cls(getattr(sys, name) or io.StringIO(), name=name, width=width)

    def write(self, text: str) -> None:
        """Writes text and flushes. Raises OutputError for a failure such as a full disk, not for a closed pipe."""
        if self.broken or not text:
            return
        try:
            text = encodable(text, self.encoding)
            if self.terminal:
                click.echo(text, self.stream, nl=False)  # consoles of Windows need calls in place of escapes
            else:
                self.stream.write(text)
                self.stream.flush()
        except ValueError:  # closed by its owner
            self.broken = True
        except OSError as error:
            self._silence()
            # Windows reports EINVAL where other systems report EPIPE.
            if error.errno not in (errno.EPIPE, errno.EINVAL, errno.ECONNRESET):
                raise OutputError(f"cannot write to {printable(self.name)}: {error.strerror}") from error

    def _silence(self) -> None:
        """Redirects stdout's buffer to the null device, because Python would report its failure again at exit."""
        self.broken = True
        if self.stream is sys.stdout:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)

    @property
    def width(self) -> int | None:
        """The width of the terminal in cells; where it is no terminal that of standard(), None = endless."""
        if not self.terminal:
            return self._width
        try:
            cells = int(os.environ.get("COLUMNS") or os.get_terminal_size(self.stream.fileno()).columns)
        except (OSError, ValueError):
            cells = 0
        return max(cells or 80, 20)

    def rows_beside(self, lines: Sequence[str], rows: int) -> int:
        """How many rows of a table fit the terminal, beside these lines and what is around a table; at least 3."""
        try:
            height = int(os.environ.get("LINES") or os.get_terminal_size(self.stream.fileno()).lines)
        except (OSError, ValueError):
            height = 0
        if not self.terminal or not height or rows > _USUAL:
            return rows
        return max(min(rows, height - _AROUND - sum(len(self._broken(line)) for line in lines)), 3)

    def _broken(self, text: str) -> list[str]:
        """The text in lines of the terminal, broken between words."""
        if not self.terminal or self.width is None:
            return [printable(text).rstrip()]
        from textwrap import wrap

        return wrap(printable(text), self.width, break_long_words=False, break_on_hyphens=False) or [""]

    def show(self, *parts: str | TextTable) -> None:
        """Writes lines and tables, with control characters escaped, in one write; "" is an empty line.

        On a terminal the first line is bold, and lines are broken between words.
        """
        width, colors = self.width, self.terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        lines: list[str] = []
        for part in parts:
            if isinstance(part, TextTable):
                lines += part.lines(width=width, unicode=self.unicode, colors=colors)
            else:
                broken = self._broken(part)
                lines += broken if lines or not colors else [styled(line, "bold") for line in broken]
        self.write("".join(f"{line}\n" for line in lines))


@contextmanager
def progress_bar(what: str, total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that advances the bar by a number of steps out of `total`.

    what: the label of the bar. total: the number of steps when the work is done. shown: False draws no bar.
    """
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console as RichConsole
    from rich.progress import Progress

    with Progress(console=RichConsole(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda steps: progress.update(task, advance=steps)
