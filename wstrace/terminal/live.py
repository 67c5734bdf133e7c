"""A status line at the bottom of a terminal, which is redrawn and finally removed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from wstrace.text import printable

if TYPE_CHECKING:
    from wstrace.terminal.output import Output


class LiveLine:
    """A status line whose text update() replaces.

    rich's refresh thread stays off, because a session that traces its own process would trace that thread too.

    Args:
        output: an Output on a terminal.
    """

    def __init__(self, output: Output) -> None:
        from rich.live import Live

        self._live = Live(console=output.rich(), auto_refresh=False, transient=True, redirect_stdout=False,
                          redirect_stderr=False)  # fmt: skip
        self._live.start()

    def update(self, line: str) -> bool:
        """Draws this text, cut to the terminal's width. Returns False when the terminal is closed."""
        from rich.text import Text

        try:
            self._live.update(Text(printable(line), no_wrap=True, overflow="ellipsis"), refresh=True)
        except (OSError, ValueError):
            return False
        return True

    def close(self) -> None:
        """Removes the line."""
        with contextlib.suppress(OSError, ValueError):
            self._live.stop()
