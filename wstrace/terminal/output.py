"""Output: a text stream that handles poor encodings, readers that closed the pipe, and the lack of a terminal."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TextIO

from wstrace.errors import OutputError
from wstrace.output_file import open_output
from wstrace.terminal.table import Styled, TextTable, has_blocks
from wstrace.text import encodable, printable

if TYPE_CHECKING:
    from rich.console import Console as RichConsole


_ENDLESS = 8192  # cells of a line without a terminal
_STYLED_ROWS = 400  # only this many rows of a table have colours
_COLORS: dict[str, Literal["standard", "256", "truecolor"]] = {
    "standard": "standard", "256": "256", "truecolor": "truecolor"}  # fmt: skip


class Output:
    """A text stream for reports.

    Attributes:
        terminal: whether it is a terminal, so that lines are cut to its width and styles are used.
        unicode: whether its encoding has block characters and an ellipsis.
        broken: whether its reader closed the pipe (`| head`) or it was closed; later text is discarded.
    """

    def __init__(
        self, stream: TextIO, *, name: str = "the terminal", owned: bool = False, width: int | None = None
    ) -> None:
        self.stream, self._width = stream, width
        self.name = name
        self.broken = False
        self._owned = owned
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        try:
            self.terminal = stream.isatty()
        except ValueError:  # closed
            self.terminal, self.broken = False, True
        self.unicode = has_blocks(self.encoding)

    @classmethod
    def open(cls, path: str) -> Output:
        """A UTF-8 file; an existing one is overwritten. Raises OutputError."""
        opened = open_output(path, force=True)
        if opened.regular:
            os.ftruncate(opened.fd, 0)
        return cls(os.fdopen(opened.fd, "w", encoding="utf-8"), name=path, owned=True)

    @classmethod
    def standard(cls, name: str, *, width: int | None = None) -> Output:
        """The present stdout or stderr of this process; the null device when it has none, as under pythonw.

        Args:
            width: the cells of a line where it is no terminal; None = as many as it takes.
        """
        stream = getattr(sys, name)
        if stream is None:
            return cls(open(os.devnull, "w", encoding="utf-8"), owned=True)
        return cls(stream, name=name, width=width)

    def write(self, text: str) -> None:
        """Writes text and flushes. Raises OutputError for a failure such as a full disk, not for a closed pipe."""
        if self.broken or not text:
            return
        try:
            self.stream.write(encodable(text, self.encoding))
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

    def close(self) -> None:
        """Closes what open() opened."""
        if self._owned:
            self.stream.close()

    @property
    def width(self) -> int | None:
        """The width of the terminal in cells; where it is no terminal that of standard(), None = endless."""
        return max(self.rich().width, 20) if self.terminal else self._width

    def rich(self) -> RichConsole:
        """A rich console on the stream, without markup or highlighting; plain under NO_COLOR or TERM=dumb."""
        from rich.console import Console as RichConsole

        painter = RichConsole(file=self.stream, markup=False, highlight=False, emoji=False)
        return self._copy(painter, self.stream) if painter.legacy_windows or not self.terminal else painter

    def _copy(self, painter: RichConsole, file: TextIO) -> RichConsole:
        """The same console on another file, without colours if only calls of the old Windows console could set them."""
        from rich.console import Console as RichConsole

        plain = painter.legacy_windows or not self.terminal
        return RichConsole(file=file, markup=False, highlight=False, emoji=False, legacy_windows=False,
                       force_terminal=not plain, no_color=painter.no_color,
                       color_system=None if plain else _COLORS.get(painter.color_system or ""),
                       width=painter.width if self.terminal else _ENDLESS)  # fmt: skip

    def show(self, *parts: str | Styled | TextTable) -> None:
        """Writes lines and tables, with control characters escaped, in one write; "" is an empty line."""
        if self.broken:
            return
        width = self.width
        page = io.StringIO()
        if self.terminal:
            self._paint(page, parts, width)
        else:
            for part in parts:
                for line in self._lines(part, width):
                    page.write("".join(piece.text for piece in line).rstrip() + "\n")
        self.write(page.getvalue())

    def _lines(self, part: str | Styled | TextTable, width: int | None) -> Iterable[list[Styled]]:
        if isinstance(part, TextTable):
            return part.lines(width=width, unicode=self.unicode)
        text, style = (part, "") if isinstance(part, str) else part
        return [[Styled(printable(text), style)]]

    def _paint(self, page: TextIO, parts: Iterable[str | Styled | TextTable], width: int | None) -> None:
        """Renders the parts with colours into `page`, which cannot fail; only write() touches the stream."""
        from rich.text import Text

        painter = self._copy(self.rich(), page)
        for part in parts:
            table = isinstance(part, TextTable)
            for number, line in enumerate(self._lines(part, width)):
                if table and number > _STYLED_ROWS:  # rich takes 0.1 ms per line
                    page.write("".join(piece.text for piece in line) + "\n")
                else:
                    text = Text.assemble(*line)
                    painter.print(text, no_wrap=table, overflow="ignore" if table else None, crop=False)


class LiveLines:
    """Status lines whose text update() replaces.

    rich's refresh thread stays off, because a session that traces its own process would trace that thread too.

    Args:
        output: an Output on a terminal.
    """

    def __init__(self, output: Output) -> None:
        from rich.live import Live

        self._terminal = output.rich()
        self._live = Live(console=self._terminal, auto_refresh=False, transient=True, redirect_stdout=False,
                          redirect_stderr=False)  # fmt: skip
        self._live.start()

    @property
    def room(self) -> int:
        """How many lines the terminal has."""
        return self._terminal.height

    def update(self, *lines: str) -> bool:
        """Draws these lines, each cut to the terminal's width. Returns False when the terminal is closed."""
        from rich.text import Text

        text = "\n".join(map(printable, lines))
        try:
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        except (OSError, ValueError):
            return False
        return True

    def close(self) -> None:
        """Removes the lines."""
        with contextlib.suppress(OSError, ValueError):
            self._live.stop()


@contextmanager
def progress_bar(what: str, total: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Yields a function that advances the bar by a number of steps out of `total`.

    Args:
        what: the label of the bar.
        total: the number of steps when the work is done.
        shown: False draws no bar.
    """
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console as RichConsole
    from rich.progress import Progress

    with Progress(console=RichConsole(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda steps: progress.update(task, advance=steps)
