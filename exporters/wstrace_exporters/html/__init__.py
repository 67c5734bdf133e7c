"""The format `.html`: a report in one file that needs no network, with pictures; and two traces side by side."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.hookspecs import Format, hookimpl


@hookimpl
def wstrace_formats() -> Sequence[Format]:
    """Returns the format for a report in one file."""
    return [
        Format(
            "html",
            (".html", ".htm"),
            "a report with pictures, in one offline file",
            "wstrace_exporters.html.report:write",
        )
    ]
