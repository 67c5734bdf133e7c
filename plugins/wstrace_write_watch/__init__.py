"""What was written since the last read: the source `write_watch`, wstrace.WriteWatch and wstrace.agent.

`backend.py` describes what it needs from the system.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wstrace.hookspecs import hookimpl

if TYPE_CHECKING:
    from wstrace.interfaces import Source


@hookimpl
def wstrace_sources() -> Sequence[type[Source]]:
    """The source `write_watch`."""
    from wstrace_write_watch.source import WriteWatchSource

    return [WriteWatchSource]
