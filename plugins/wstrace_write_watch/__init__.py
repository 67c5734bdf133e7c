"""What was written since the last look: the source `write_watch`, wstrace.WriteWatch and wstrace.agent.

What it asks of the system stands in `backend.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.hookspecs import hookimpl
from wstrace.interfaces import Source


@hookimpl
def wstrace_sources() -> Sequence[type[Source]]:
    """The source `write_watch`."""
    from wstrace_write_watch.source import WriteWatchSource

    return [WriteWatchSource]
