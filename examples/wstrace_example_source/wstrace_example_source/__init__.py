"""An outsider's source: samples the resident bytes of the target, one row per sample."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace import Source, hookimpl


@hookimpl
def wstrace_sources() -> Sequence[type[Source]]:
    """The source's class, imported only where sources are wanted: numpy would cost every command its start."""
    from wstrace_example_source.source import ResidentSize

    return [ResidentSize]
