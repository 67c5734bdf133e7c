"""Output: a text stream that handles poor encodings, readers that closed the pipe, and the lack of a terminal."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import TextIO

import click

from wstrace.errors import OutputError
from wstrace.output_file import open_output
from wstrace.terminal.table import TextTable, has_blocks, styled
from wstrace.text import encodable, printable


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

    def close(self) -> None:
        """Closes what open() opened."""
        if self._owned:
            self.stream.close()

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

    def show(self, *parts: str | TextTable) -> None:
        """Writes lines and tables, with control characters escaped, in one write; "" is an empty line.

        On a terminal the first line is bold, and lines are broken between words.
        """
        width, colors = self.width, self.terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        lines: list[str] = []
        for part in parts:
            if isinstance(part, TextTable):
                lines += part.lines(width=width, unicode=self.unicode, colors=colors)
            elif self.terminal and width is not None:
                broken = wrap(printable(part), width, break_long_words=False, break_on_hyphens=False) or [""]
                lines += broken if lines or not colors else [styled(line, "bold") for line in broken]
            else:
                lines.append(printable(part).rstrip())
        self.write("".join(f"{line}\n" for line in lines))


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
