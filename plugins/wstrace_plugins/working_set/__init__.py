"""What is in memory and what it belongs to: four sources (working_set ...), commands (ps, snapshot ...) and API.

`backend.py` describes what it needs from the system.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from wstrace.errors import Unavailable
from wstrace.hookspecs import Reference, hookimpl


@hookimpl
def wstrace_sources() -> Sequence[Reference]:
    """The sources `working_set`, `final_snapshot`, `peak_snapshot` and `triggers`."""
    return [
        Reference("working_set", "wstrace_plugins.working_set.source:WorkingSetSource"),
        Reference("final_snapshot", "wstrace_plugins.working_set.peak:FinalSnapshotSource", default=True),
        Reference("peak_snapshot", "wstrace_plugins.working_set.peak:PeakSnapshotSource", by_the_way=_at_the_peak()),
        Reference("triggers", "wstrace_plugins.working_set.triggers:TriggersSource"),
    ]


def _at_the_peak() -> str:
    """The options of the source that `run` adds by the way: 3 percent of a CPU (docs/recipes/memory.md)."""
    from wstrace_plugins.os import system

    with suppress(Unavailable):
        return "interval=0.01,max_cpu=0.03" if system() == "linux" else ""
    return ""
