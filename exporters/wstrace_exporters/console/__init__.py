"""The terminal: the summary at the end of a trace, what grew, a line per fault; commands; flame graphs."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.hookspecs import Format, Reference, hookimpl


@hookimpl
def wstrace_exporters() -> Sequence[Reference]:
    """Returns the exporter `console`."""
    return [Reference("console", "wstrace_exporters.console.console:Console", default=True, reports=True)]


@hookimpl
def wstrace_formats() -> Sequence[Format]:
    """Returns the format for flame graphs, which `report --format folded` prints."""
    return [Format("folded", (".folded",), "folded stacks, for flame graphs", "wstrace_exporters.console.folded:write")]
