"""`wstrace unshared`: which pages processes copied that they had shared since a fork, and by which lines."""

from __future__ import annotations

from typing import Any

import click

from wstrace.analysis.blame.orders import VIEWS
from wstrace.cli.common import print_json
from wstrace.errors import UsageError
from wstrace_exporters.console.recorded import TraceWords, recording_options, trace_of


@click.command(cls=TraceWords, options_metavar="[OPTIONS]", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--by", default="", metavar="VIEW[,VIEW]", help=f"One table: {', '.join(VIEWS)}, or two of them.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Rows of a table; JSON has all.")
@recording_options
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="FILE.wst | PID | [--] COMMAND")
@click.pass_context
def unshared(ctx: click.Context, /, target: tuple[str, ...], **options: Any) -> int:
    """Show what forked processes copied of the memory that they shared, and by which lines.

    A copy is a write that made one more page: of k processes that share a page, at most k - 1 copy it.

    \b
    wstrace unshared -- gunicorn --preload app:app
    wstrace unshared x.wst --by function
    """
    views = views_of(options["by"])
    with trace_of(target, options, literal=ctx.meta["wstrace.literal"]) as (trace, code):
        show(trace, views, options["top"], as_json=options["as_json"])
    return code


def views_of(by: str) -> list[str]:
    """The views that `--by` names. Raises UsageError."""
    views = [word for word in by.split(",") if word]
    for view in views:
        if view not in VIEWS:
            raise UsageError(f"--by {view}", f"known: one or two of {', '.join(VIEWS)}")
    if len(set(views)) != len(views) or len(views) > 2:
        raise UsageError(f"--by {by}", "name one or two different views")
    return views


def show(trace: Any, views: list[str], top: int, *, as_json: bool) -> None:
    """Prints the copies of a trace."""
    from wstrace.analysis.blame.unshared import Unshared
    from wstrace.terminal.output import Output
    from wstrace_exporters.console.unshared_tables import parts

    told = Unshared(trace.blame(at="exit", threads=True))
    if as_json:
        print_json(told.as_dict(views or ["line"]))
    else:
        Output.standard("stdout").show(*parts(told, views, top))
