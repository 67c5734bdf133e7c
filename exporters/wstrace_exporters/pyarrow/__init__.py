"""Written by pyarrow (wstrace[convert]): the formats `.parquet` and `.arrow`."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.hookspecs import Format, hookimpl


@hookimpl
def wstrace_formats() -> Sequence[Format]:
    """Returns the formats for Parquet and for Arrow's own files."""
    parquet, arrow = (f"wstrace_exporters.pyarrow.writer:write_{name}" for name in ("parquet", "arrow"))
    return [
        Format("parquet", (".parquet",), "rows as Parquet, compressed", parquet, "rows"),
        Format("arrow", (".arrow", ".feather"), "rows as an Arrow IPC file", arrow, "rows"),
    ]
