"""The terminal: the summary at the end of a trace, what grew, a line per fault, a live line; commands; flame graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wstrace.declarations import Format, Reference
from wstrace.hookspecs import hookimpl

if TYPE_CHECKING:
    from wstrace.interfaces import Exporter


@hookimpl
def wstrace_exporters() -> Sequence[type[Exporter] | Reference]:
    """Returns the exporter `console`."""
    from wstrace_exporters.console.console import Console

    return [Console]


@hookimpl
def wstrace_formats() -> Sequence[Format]:
    """Returns the format for flame graphs, which `report --format folded` prints."""
    return [Format("folded", (".folded",), "folded stacks, for flame graphs", "wstrace_exporters.console.folded:write")]
