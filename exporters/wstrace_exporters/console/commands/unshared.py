"""`wstrace unshared`: which pages processes copied that they had shared since a fork, and by which lines."""

from __future__ import annotations

from typing import Any

import click

from wstrace.cli.common import print_json
from wstrace_exporters.console.recorded import TOP, TraceWords, recording_options, trace_of


@click.command(cls=TraceWords, options_metavar="[OPTIONS]")
@click.option(
    "--by", default="", metavar="DIM[,DIM]", help="line, function, file, kind, process ..., or several of them."
)
@TOP
@recording_options
def unshared(ctx: click.Context, /, target: tuple[str, ...], **options: Any) -> int:
    """Show what forked processes copied of the memory that they shared, and by which lines.

    A copy is a write that made one more page: of k processes that share a page, at most k - 1 copy it.

    \b
    wstrace unshared -- gunicorn --preload app:app
    wstrace unshared x.wst --by function
    """
    from wstrace.analysis.unshared import unshared as unshared_of
    from wstrace_exporters.console.report_table import parts, show

    by = tuple(word for word in options["by"].split(",") if word) or ("line",)
    with trace_of(target, options, literal=ctx.meta["wstrace.literal"]) as (trace, code):
        found = unshared_of(trace, by)
        if options["as_json"]:
            print_json(found.as_dict())
        else:
            everything = bool(options["by"] or options["verbose"])
            show(parts(found, options["top"], everything=everything), everything=everything)
    return code
