"""Status lines at the bottom of a terminal, which are redrawn and finally removed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from wstrace.text import printable

if TYPE_CHECKING:
    from wstrace.terminal.output import Output


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
