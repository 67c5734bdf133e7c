"""The format `.csv`: the rows of one stream as text, for spreadsheets and everything else."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.hookspecs import Format, hookimpl


@hookimpl
def wstrace_formats() -> Sequence[Format]:
    """Returns the format for comma-separated values."""
    return [Format("csv", (".csv",), "rows as comma-separated values", "wstrace_exporters.csv.writer:write", "rows")]
