"""The format `.pftrace`: a trace for Perfetto (ui.perfetto.dev), with time as its axis."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.hookspecs import Format, hookimpl


@hookimpl
def wstrace_formats() -> Sequence[Format]:
    """Returns the format of Perfetto."""
    return [
        Format("perfetto", (".pftrace",), "a trace for Perfetto, over time", "wstrace_exporters.perfetto.writer:write")
    ]
