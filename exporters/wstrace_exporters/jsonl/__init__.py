"""The format `.jsonl`: the rows of one stream as JSON objects, one on each line."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.hookspecs import Format, hookimpl


@hookimpl
def wstrace_formats() -> Sequence[Format]:
    """Returns the format for JSON lines."""
    suffixes = (".jsonl", ".ndjson")
    return [Format("jsonl", suffixes, "rows as JSON lines", "wstrace_exporters.jsonl.writer:write", "rows")]
