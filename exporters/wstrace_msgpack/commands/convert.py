"""`wstrace convert`: a stream of a trace as Parquet, CSV, JSON lines or Arrow IPC."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from wstrace.cli.common import Duration
from wstrace.errors import UsageError
from wstrace.options import nearest
from wstrace_msgpack.interchange.tabular import FORMATS, write
from wstrace_msgpack.read.trace import TraceFile, open_trace


@click.command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="OUT", required=True, help="out.parquet, .csv, .jsonl or .arrow.")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@click.option("--stream", default="page_fault", show_default=True, help="Which stream.")
@click.option("--columns", metavar="A,B,...", help="Only these columns, in this order.")
@click.option("--start", type=Duration(), metavar="30s", help="From this time after the trace's beginning.")
@click.option("--end", type=Duration(), metavar="5m", help="Up to this time after the trace's beginning.")
def convert(
    paths: tuple[str, ...],
    output: str,
    force: bool,
    stream: str,
    columns: str | None,
    start: float | None,
    end: float | None,
) -> None:
    """Write a stream of trace files in another format, with file names in clear. Needs wstrace[convert]."""
    suffix = Path(output).suffix
    if suffix not in FORMATS:
        raise UsageError(f"{output}: the format {suffix!r} is not known", f"end it in {', '.join(sorted(FORMATS))}")
    with open_trace(paths) as trace:
        names = check(trace, stream, columns)
        begin = trace.begin_ns
        first, last = (None if at is None else begin + int(at * 1e9) for at in (start, end))
        batches = trace.batches(stream, names, first, last)
        rows = write(batches, output, force=force, progress=sys.stderr.isatty())
        damaged = "" if trace.state == "clean" else f" (the trace is {trace.state}: `wstrace info` tells what is lost)"
    click.echo(f"{output}: {rows:,} rows{damaged}", err=True)


def check(trace: TraceFile, stream: str, columns: str | None) -> list[str] | None:
    """The columns asked for. Raises UsageError naming the nearest of an unknown stream or column."""
    if stream not in trace.streams:
        raise UsageError(f"the trace has no stream {stream!r}", nearest(stream, trace.streams))
    if columns is None:
        return None
    known = [column.name for column in trace.columns_of(stream)]
    names = [name.strip() for name in columns.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(f"{stream} has no column {name!r}", nearest(name, known))
    return names
