"""`wstrace convert`: writes a trace in another file format, which the suffix of the output names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from wstrace.cli.common import time_window
from wstrace.cli.tracing import warn
from wstrace.declarations import Format
from wstrace.errors import UsageError
from wstrace.formats import format_of, save
from wstrace.guard import pass_interrupt, quietly, why
from wstrace.options import Option, converted, keyword_options
from wstrace.plugins import default_plugins, load
from wstrace.table import Selection
from wstrace.terminal.progress import progress_bar
from wstrace.text import damage_note, estimates_note, plural, printable
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.storage.urls import shown
from wstrace_exporters.msgpack.write.upload import send_folder


class _WithFormats(click.Command):
    """A click command whose help ends with the file formats of all plugins and their options."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes one line for each format."""
        formats = {chosen.name: chosen for _, chosen in default_plugins().formats.values()}
        with formatter.section("Formats"):
            formatter.write_dl([(", ".join(chosen.suffixes), _about(chosen)) for chosen in formats.values()])


def _about(chosen: Format) -> str:
    """A format's line of help, with its own options and their defaults."""
    nothing: dict[str, Option] = {}
    own = quietly(lambda: own_options(chosen), nothing)  # an error is reported when the format is used
    told = ", ".join(f"{name}={option.default}" for name, option in own.items())
    return printable(chosen.help + (f"; --option {told}" if told else ""))


def own_options(chosen: Format) -> dict[str, Option]:
    """The options of a format."""
    return keyword_options(load(chosen.write))


def given_options(plugin: str, chosen: Format, texts: Sequence[str]) -> dict[str, Any]:
    """The values of `--option NAME=VALUE`, converted by the annotations of the format's function.

    Raises:
        UsageError: an option has no `=`, is unknown or has a value of another type; or the format's options cannot be
            read.
    """
    if not texts:
        return {}
    whose = f"the format {chosen.name!r}"
    for text in texts:
        if "=" not in text:
            raise UsageError(f"--option {text}: it has no value", f"write {text}=VALUE")
    try:
        known = own_options(chosen)
    except BaseException as broken:
        pass_interrupt(broken)
        raise UsageError(f"the options of {whose} of the plugin {plugin!r} cannot be read: {why(broken)}") from None
    return converted(dict(text.split("=", 1) for text in texts), known, whose)


@click.command(cls=_WithFormats)
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="OUT", required=True, help="out.parquet, .csv ...")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@click.option("--option", "own", metavar="NAME=VALUE", multiple=True, help="An option of the format; may be repeated.")
@click.option("--stream", help="Which stream.  [default: page_fault]")
@click.option("--columns", metavar="A,B,...", help="Only these columns, in this order.")
@time_window
def convert(
    paths: tuple[str, ...],
    output: str,
    force: bool,
    own: tuple[str, ...],
    stream: str | None,
    columns: str | None,
    start: float | None,
    end: float | None,
) -> None:
    """Write trace files in the format that OUT ends in, with file names in clear.

    .parquet and .arrow need wstrace[convert]. A folder of parts that a trace to an object store left is sent to
    -o s3://BUCKET/NAME.wst, gs:// or az://.
    """
    if len(paths) == 1 and Path(paths[0]).is_dir():
        n = send_folder(paths[0], output)
        click.echo(printable(f"{paths[0]}: {plural(n, 'part')} sent to {shown(output)}"))
        return
    plugins = default_plugins()
    options: dict[str, Any] = given_options(*format_of(output, plugins), own)
    for failure in plugins.failures("wstrace_formats"):
        warn(failure)
    with open_trace(paths) as trace:
        begin = trace.begin_ns
        first, last = (None if at is None else begin + int(at * 1e9) for at in (start, end))
        names = None if columns is None else tuple(name.strip() for name in columns.split(","))
        with progress_bar("convert", trace.rows.get(stream or "page_fault", 0), shown=sys.stderr.isatty()) as advance:
            trace.observer = advance
            selection = Selection(stream, names, first, last)
            rows = save(trace, output, selection, options, force=force, plugins=plugins, waiting=warn)
        damage, chosen = damage_note(trace.state), format_of(output, plugins)[1]
        notes = [estimates_note(trace.info.sampled) if chosen.takes == "trace" else "", getattr(rows, "note", "")]
    click.echo("; ".join([f"{printable(output)}: {rows:,} rows{damage}", *filter(None, notes)]), err=True)
