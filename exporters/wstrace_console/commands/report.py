"""`wstrace report FILE`: the summary that the live run printed, from its trace file."""

from __future__ import annotations

from typing import Any

import click

from wstrace.cli.common import exit_on_exporter_error, time_window
from wstrace.options import Spec


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--by", type=click.Choice(["line", "function", "stack", "package", "file", "module", "pair", "thread",
                                         "process", "kind", "section", "instruction", "unshared"]),
              help="Show one table: by own line or function of the stack, by file of the page, ...")  # fmt: skip
@click.option("--own", multiple=True, metavar="PATH", help="Files below PATH are the program's own; may be repeated.")
@click.option("--not-own", multiple=True, metavar="PATH", help="Files below PATH are not; may be repeated.")
@click.option("--callers", metavar="FUNCTION", default="", help="Faults in and below a function, by its caller.")
@click.option("--callees", metavar="FUNCTION", default="", help="Faults in and below a function, by what it called.")
@click.option("--native", is_flag=True, help="Tell stacks by the samples of native code: estimates with their margin.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Rows of a table.")
@click.option("--sort", type=click.Choice(["resident", "faults", "major"]),
              help="Order of the rows: resident bytes where a snapshot tells them, else faults.")  # fmt: skip
@click.option("--hard", is_flag=True, help="Only faults that read from disk.")
@click.option("--soft", is_flag=True, help="Only faults that did not.")
@click.option("--file", "glob", metavar="GLOB", default="", help="Only pages of '[heap]', libc.so.6, '*.so*'.")
@click.option(
    "--kind", multiple=True, metavar="KIND", help="Only anon, heap, stack, file, shared ...; may be repeated."
)
@click.option("--pid", type=click.IntRange(0), multiple=True, help="Only this process; may be repeated.")
@click.option("--tid", type=click.IntRange(0), multiple=True, help="Only faults of this thread; may be repeated.")
@time_window
@click.option("-v", "--verbose", is_flag=True, help="All figures of completeness; all frames of stacks.")
@click.option("--json", is_flag=True, help="One JSON object.")
@click.option("--format", "format_", type=click.Choice(["summary", "lines", "jsonl", "folded"]), default="summary",
              show_default=True, help="lines: VA PC owner via module; jsonl; folded: for flame graphs.")  # fmt: skip
def report(files: tuple[str, ...], by: str | None, glob: str, format_: str, **options: Any) -> int:
    """Show who brought which pages, from a trace file.

    \b
    wstrace report out.wst --by line
    wstrace report out.wst --callers parse_record
    wstrace report out.wst --format folded | flamegraph.pl > faults.svg
    wstrace report out.wst --hard --file '*.so*' --top 20
    wstrace report out.wst --format lines | head
    """
    if by == "unshared":
        return _unshared(files, options)
    from wstrace.bus import UNLIMITED
    from wstrace.session import Session
    from wstrace_console.console import Console

    options |= {"sort": options["sort"] or "", **{name: options[name] or 0.0 for name in ("start", "end")}}
    console = Console(to="stdout", format=format_, by=by or "", file=glob, **options)  # type: ignore[arg-type]
    source = Spec("replay", {"path": list(files)})  # A list is not parsed as text, so a path may contain commas.
    session = Session(sources=[source], exporters=[console], record=False, patience=UNLIMITED)
    with session:
        while not session.wait(0.1):
            if console.broken:
                break
    exit_on_exporter_error(session)
    return 0


def _unshared(files: tuple[str, ...], options: dict[str, Any]) -> int:
    """Shows the copies of shared pages, as `wstrace unshared` does."""
    from wstrace import open_trace
    from wstrace_console.commands.unshared import show

    with open_trace(files) as trace:
        show(trace, [], options["top"], as_json=options["json"])
    return 0
