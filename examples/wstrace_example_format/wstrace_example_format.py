"""A file format of an outsider's: the files that a trace's faults brought in, as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from wstrace import Format, Trace, hookimpl
from wstrace.text import printable


def write(trace: Trace, file: IO[bytes], *, top: int = 10) -> int:
    """Writes the `top` files by faults; returns how many rows the table has. `file` is open, and is not closed here.

    If this raises, no file is left behind, and one line on stderr names this plugin and the reason.
    """
    rows = trace.report(by="file", sort="faults").rows[:top]
    file.write(b"| faults | from disk | file |\n|---:|---:|---|\n")
    for row in rows:
        file.write(f"| {row.values['faults']:,} | {row.values['from_disk']:,} | {printable(row.label)} |\n".encode())
    return len(rows)


@hookimpl
def wstrace_formats() -> Sequence[Format]:
    """`wstrace convert x.wst -o x.md`, `trace.save("x.md", top=20)`."""
    return [Format("markdown", (".md",), "the files of the pages as a table", "wstrace_example_format:write")]
