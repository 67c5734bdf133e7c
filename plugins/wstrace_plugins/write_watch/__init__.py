"""What was written since the last read: the source `write_watch`, wstrace.WriteWatch and MemoryWatch.

`backend.py` describes what it needs from the system.
"""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.hookspecs import Reference, hookimpl


@hookimpl
def wstrace_sources() -> Sequence[Reference]:
    """The source `write_watch`."""
    return [Reference("write_watch", "wstrace_plugins.write_watch.source:WriteWatchSource")]
