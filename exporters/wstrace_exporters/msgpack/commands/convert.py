"""`wstrace convert`: writes traces as one, or in another file format, sends them to a store or to exporters."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from wstrace.cli.common import exit_on_exporter_error, is_administrator, time_window
from wstrace.cli.tracing import warn
from wstrace.errors import UsageError, pass_interrupt, quietly, why
from wstrace.formats import format_of, save
from wstrace.hookspecs import Format
from wstrace.options import Config, Option, Spec, converted, keyword_options
from wstrace.plugins import default_plugins, load
from wstrace.session import Session
from wstrace.table import Selection
from wstrace.terminal import progress_bar
from wstrace.text import damage_note, estimates_note, plural, printable, size
from wstrace_exporters.msgpack.commands.info import unknown_lines
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.storage.urls import shown
from wstrace_exporters.msgpack.write.copy import copy
from wstrace_exporters.msgpack.write.upload import send_folder


class _WithFormats(click.Command):
    """A click command with help that ends with the file formats of all plugins and their options."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes one line for each format."""
        formats = {chosen.name: chosen for _, chosen in default_plugins().formats.values()}
        with formatter.section("Formats"):
            formatter.write_dl([(", ".join(chosen.suffixes), _about(chosen)) for chosen in formats.values()])


def _about(chosen: Format) -> str:
    """A format's line of help, with its own options and their defaults."""
    nothing: dict[str, Option] = {}  # an error is reported when the format is used
    own = quietly(lambda: keyword_options(load(chosen.write)), nothing).items()
    defaults = ", ".join(f"{name}={option.default}" for name, option in own)
    return printable(chosen.help + (f"; --option {defaults}" if defaults else ""))


def given_options(plugin: str, chosen: Format, texts: Sequence[str]) -> dict[str, Any]:
    """The values of `--option NAME=VALUE`, converted by the annotations of the format's function.

    Raises UsageError: an option has no `=`, is unknown or has a value of another type; or the format's options cannot
    be read.
    """
    named = f"the format {chosen.name!r}"
    for text in texts:
        if "=" not in text:
            raise UsageError(f"--option {text}: it has no value", f"write {text}=VALUE")
    try:
        known = keyword_options(load(chosen.write)) if texts else {}
    except BaseException as broken:
        pass_interrupt(broken)
        raise UsageError(f"the options of {named} of the plugin {plugin!r} cannot be read: {why(broken)}") from None
    return converted(dict(text.split("=", 1) for text in texts), known, named)


@click.command(cls=_WithFormats)
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="OUT", help="out.wst, .parquet, .csv ...; of a folder the URL of its trace.")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@click.option(
    "-e", "--exporter", "exporters", multiple=True, metavar="NAME[:OPT=VAL,...]", help="Replay the records to it."
)
@click.option("--option", "own", metavar="NAME=VALUE", multiple=True, help="An option of the format; may be repeated.")
@click.option("--stream", help="Which stream.  [default: page_fault]")
@click.option("--columns", metavar="A,B,...", help="Only these columns, in this order.")
@time_window
def convert(
    paths: tuple[str, ...],
    output: str | None,
    force: bool,
    exporters: tuple[str, ...],
    own: tuple[str, ...],
    stream: str | None,
    columns: str | None,
    start: float | None,
    end: float | None,
) -> None:
    """Write trace files in the format that OUT ends in, with file names as text, or replay them to exporters.

    OUT.wst is one whole trace of all that can be read of the files, in the order of their times. Traces of one boot of
    one machine keep their clock. Those of other hosts and boots are moved to the first one's clock by their wall time,
    every process name gets its host (`name@host`), and equal pids of theirs stay apart.

    .parquet needs wstrace[convert]. A folder of parts that a trace to an object store left is sent to
    -o s3://BUCKET/NAME.wst, gs:// or az://.
    """
    if (output is None) == (not exporters):
        raise UsageError("convert needs -o OUT or -e EXPORTER", "write: wstrace convert FILE -o OUT.csv")
    if output is None:
        replay = Spec("replay", {"path": list(paths), "start": start, "end": end})
        config = Config.load(project=not is_administrator())
        with Session(sources=[replay], exporters=list(exporters), record=False, config=config) as session:
            session.wait()
        exit_on_exporter_error(session)
    elif len(paths) == 1 and Path(paths[0]).is_dir():
        n = send_folder(paths[0], output)
        click.echo(printable(f"{paths[0]}: {plural(n, 'part')} sent to {shown(output)}"))
    elif output == "-" or output.endswith(".wst"):
        if own or (stream, columns, start, end) != (None, None, None, None):
            raise UsageError(
                "a trace file is converted whole", "leave --option, --stream, --columns, --start, --end out"
            )
        _copy(paths, output, force=force)
    else:
        _save(paths, output, own, (stream, columns, start, end), force=force)


def _copy(paths: Sequence[str], output: str, *, force: bool) -> None:
    """Writes one clean trace of all that can be read of others, and says what is lost."""
    if any(Path(output).exists() and Path(path).exists() and Path(output).samefile(path) for path in paths):
        raise UsageError(f"{output} is one of the files that are read", "name another one; the original stays as it is")
    with open_trace(paths, several_boots=True) as trace:
        of_size = {part.header.page_size: part.path for part in trace.parts if part.header.page_size}
        if len(of_size) > 1:  # a file says one size, by which all of its pages are counted
            sizes = ", ".join(f"{path} has pages of {size(n)}" for n, path in sorted(of_size.items()))
            raise UsageError(f"traces of different page sizes cannot be merged: {sizes}", "report each of them")
        rows = copy(trace, output, force=force)
        for line in unknown_lines(trace.unknown()):
            click.echo(printable(f"{trace.name}: {line.strip()}"), err=True)
        state, files = trace.state, plural(len(trace.parts), "file")
        torn = [part.path for part in trace.parts if not part.clean] or list(paths)
        lost = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in trace.damage().items() if n)
    was = "" if state == "clean" else f"; {', '.join(torn)} {'was' if len(torn) == 1 else 'were'} {state}"
    was += f": {lost}" if was and lost else ""
    click.echo(printable(f"{output}: {rows:,} rows of {files}{was}"), err=True)


def _save(
    paths: Sequence[str],
    output: str,
    own: Sequence[str],
    chosen: tuple[str | None, str | None, float | None, float | None],
    *,
    force: bool,
) -> None:
    """Writes another format. chosen: the stream, the columns, and seconds from and to which rows are taken."""
    stream, columns, start, end = chosen
    plugins = default_plugins()
    plugin, format_ = format_of(output, plugins)
    options = given_options(plugin, format_, own)
    for failure in plugins.failures("wstrace_formats"):
        warn(failure)
    with open_trace(paths) as trace:
        first, last = (None if at is None else trace.begin_ns + int(at * 1e9) for at in (start, end))
        names = None if columns is None else tuple(name.strip() for name in columns.split(","))
        with progress_bar("convert", trace.rows.get(stream or "page_fault", 0), shown=sys.stderr.isatty()) as advance:
            trace.observer = advance
            selection = Selection(stream, names, first, last)
            rows = save(trace, output, selection, options, force=force, plugins=plugins)
        notes = [estimates_note(trace.info.sampled) if format_.takes == "trace" else "", getattr(rows, "note", "")]
        said = f"{printable(output)}: {rows:,} rows{damage_note(trace.state)}"
    click.echo("; ".join([said, *filter(None, notes)]), err=True)
