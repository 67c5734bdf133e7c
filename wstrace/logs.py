"""wstrace's log, whose messages the command line shows as lines of its own.

`logging` takes 8 ms to import, and nearly no run logs anything, so it is imported with the first message.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from wstrace.text import printable

if TYPE_CHECKING:
    import logging

_as_lines = False


def log() -> logging.Logger:
    """The logger `wstrace`."""
    import logging

    shape()
    return logging.getLogger("wstrace")


def print_as_lines() -> None:
    """Makes one line of each message that no handler takes, `wstrace: MESSAGE` on stderr; called by commands."""
    global _as_lines
    _as_lines = True
    shape()


def shape() -> None:
    """Does so for the messages of other packages, too, if they have imported `logging` by now."""
    if not _as_lines or "logging" not in sys.modules:
        return
    import logging

    class Line(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return f"wstrace: {printable(record.getMessage())}"

    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Line())
