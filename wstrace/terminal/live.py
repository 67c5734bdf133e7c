"""A line at the bottom of a terminal that is drawn again and again, and taken away at the end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from wstrace.text import printable

if TYPE_CHECKING:
    from wstrace.terminal.output import Output


class LiveLine:
    """One line that update() replaces.

    rich's own refresh thread stays off: a session that traces its own process arms threads that it does not know.

    Args:
        output: a terminal.
    """

    def __init__(self, output: Output) -> None:
        from rich.live import Live

        self._live = Live(console=output.rich(), auto_refresh=False, transient=True, redirect_stdout=False,
                          redirect_stderr=False)  # fmt: skip
        self._live.start()

    def update(self, line: str) -> bool:
        """Draws this text instead, cut to the width. False when the terminal is gone."""
        from rich.text import Text

        try:
            self._live.update(Text(printable(line), no_wrap=True, overflow="ellipsis"), refresh=True)
        except (OSError, ValueError):
            return False
        return True

    def close(self) -> None:
        """Takes the line away."""
        with contextlib.suppress(OSError, ValueError):
            self._live.stop()
