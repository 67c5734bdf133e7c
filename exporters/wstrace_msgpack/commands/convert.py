"""`wstrace convert`: a trace in another file format, found by its suffix."""

from __future__ import annotations

import sys

import click

from wstrace.cli.common import Duration
from wstrace.cli.tracing import warn
from wstrace.formats import format_of, save
from wstrace.plugins import default_plugins
from wstrace.terminal.progress import progress_bar
from wstrace_msgpack.read.trace import open_trace


@click.command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="OUT", required=True, help="out.parquet, .csv, .jsonl, .arrow ...")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@click.option("--stream", help="Which stream.  [default: page_fault]")
@click.option("--columns", metavar="A,B,...", help="Only these columns, in this order.")
@click.option("--start", type=Duration(), metavar="30s", help="From this time after the trace's beginning.")
@click.option("--end", type=Duration(), metavar="5m", help="Up to this time after the trace's beginning.")
def convert(
    paths: tuple[str, ...],
    output: str,
    force: bool,
    stream: str | None,
    columns: str | None,
    start: float | None,
    end: float | None,
) -> None:
    """Write trace files in the format that OUT ends in, with file names in clear.

    .parquet and .arrow need wstrace[convert].
    """
    plugins = default_plugins()
    format_of(output, plugins)
    for failure in plugins.failures("wstrace_formats"):
        warn(failure)
    with open_trace(paths) as trace:
        begin = trace.begin_ns
        first, last = (None if at is None else begin + int(at * 1e9) for at in (start, end))
        names = None if columns is None else [name.strip() for name in columns.split(",")]
        with progress_bar("convert", trace.rows.get(stream or "page_fault", 0), shown=sys.stderr.isatty()) as advance:
            trace.observer = advance
            options = {"stream": stream, "columns": names, "start": first, "end": last}
            rows = save(trace, output, options, force=force, plugins=plugins, waiting=warn)
        damaged = "" if trace.state == "clean" else f" (the trace is {trace.state}: `wstrace info` tells what is lost)"
    click.echo(f"{output}: {rows:,} rows{damaged}", err=True)
