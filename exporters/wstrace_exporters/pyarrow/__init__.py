"""Written by pyarrow (wstrace[convert]): the format `.parquet`."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.hookspecs import Format, hookimpl


@hookimpl
def wstrace_formats() -> Sequence[Format]:
    """Returns the format for Parquet."""
    write = "wstrace_exporters.pyarrow.writer:write_parquet"
    return [Format("parquet", (".parquet",), "rows as Parquet, compressed", write, "rows")]
