"""`wstrace report FILE`: the summary that the live run printed, from its trace file."""

from __future__ import annotations

from io import StringIO
from typing import Any

import click

from wstrace.analysis.blame.orders import VIEWS
from wstrace.cli.common import Between, exit_on_exporter_error, print_json, time_window
from wstrace.errors import UsageError
from wstrace.options import Spec
from wstrace.text import damage_note, number, printable
from wstrace_exporters.console.commands.blame import TWO, views_of

#: What only tables by one key take.
_ONE_KEY = ("own", "not_own", "callers", "callees", "native")


class _By(click.Choice):  # type: ignore[type-arg, unused-ignore]  # generic since click 8.4
    """One table, or two of those that `blame` has, with a comma between them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name or names. Raises click.BadParameter, UsageError."""
        if "," in value:
            return ",".join(views_of(value))
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            return self.fail(f"{error.message.rstrip('.')}, nor two of {TWO}", param, ctx)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--by", type=_By(["line", "function", "stack", "package", "file", "module", "pair", "thread",
                                         "process", "cgroup", "kind", "section", "instruction", "unshared"]),
              help="One table: by own line or function, file of the page, ...; or of two: process,line")  # fmt: skip
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
@click.option("--between", type=Between(), metavar="1.5s,2s",
              help="As --start and --end; --json: also what came then and is still there.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="All figures of completeness; all frames of stacks.")
@click.option("--json", is_flag=True, help="One JSON object.")
@click.option("--html", metavar="FILE.html", help="Write a report with pictures in one offline file instead.")
@click.option("-f", "--force", is_flag=True, help="Overwrite FILE.html.")
@click.option("--format", "format_", type=click.Choice(["summary", "lines", "jsonl", "folded"]), default="summary",
              show_default=True, help="lines: VA PC owner via module; jsonl; folded: for flame graphs.")  # fmt: skip
def report(files: tuple[str, ...], by: str | None, glob: str, format_: str, **options: Any) -> int:
    """Show who brought which pages, from a trace file.

    \b
    wstrace report out.wst --by line
    wstrace report out.wst --callers parse_record
    wstrace report out.wst --html report.html
    wstrace report out.wst --format folded | flamegraph.pl > faults.svg
    wstrace report out.wst --hard --file '*.so*' --top 20
    wstrace report out.wst --format lines | head
    """
    html, force, window = (options.pop(name) for name in ("html", "force", "between"))
    if html:
        return _pictures(files, html, force=force)
    if window:
        if options["start"] is not None or options["end"] is not None:
            raise UsageError("--between and --start or --end exclude each other", "leave one of them out")
        options["start"], options["end"] = window
    if by == "unshared":
        return _unshared(files, options)
    if by and "," in by:
        return _two_keys(files, by, glob, format_, options)
    from wstrace.bus import UNLIMITED
    from wstrace.session import Session
    from wstrace_exporters.console.console import Console

    chosen = glob or any(options[name] for name in ("kind", "pid", "tid", "hard", "soft"))
    tells_arrivals = bool(window and options["json"] and format_ == "summary" and not chosen)
    stream = StringIO() if tells_arrivals else None
    options |= {"sort": options["sort"] or "", **{name: options[name] or 0.0 for name in ("start", "end")}}
    console = Console(stream, to="stdout", format=format_, by=by or "", file=glob, **options)  # type: ignore[arg-type]
    source = Spec("replay", {"path": list(files)})  # A list is not parsed as text, so a path may contain commas.
    session = Session(sources=[source], exporters=[console], record=False, patience=UNLIMITED)
    with session:
        while not session.wait(0.1):
            if console.broken:
                break
    exit_on_exporter_error(session)
    if tells_arrivals:
        print_json({**console.as_dict(), "arrived": _arrived(files, window, by)})
    return 0


def _arrived(files: tuple[str, ...], window: tuple[float, float], by: str | None) -> dict[str, Any]:
    """What arrived between two times, and what of it is in the snapshots that `wstrace blame` counts, for JSON."""
    from wstrace import open_trace
    from wstrace.analysis.blame.timeline import between

    with open_trace(files) as trace:
        blame = trace.blame("peak", threads=by == "thread")
        begin, end = (blame.of.origin_ns + round(seconds * 1e9) for seconds in window)
        return between(blame, begin, end, by if by in VIEWS else "line")


def _pictures(files: tuple[str, ...], path: str, *, force: bool) -> int:
    """Writes the report with pictures."""
    from wstrace import open_trace

    with open_trace(files) as trace:
        faults, damage = trace.html(path, force=force), damage_note(trace.state)
    click.echo(f"{printable(path)}: {number(faults)} faults{damage}", err=True)
    return 0


def _two_keys(files: tuple[str, ...], by: str, glob: str, format_: str, options: dict[str, Any]) -> int:
    """Shows a table by two keys."""
    from wstrace import open_trace
    from wstrace.analysis.filter import Filter
    from wstrace.terminal.output import Output
    from wstrace_exporters.console.two_keys import TwoKeys

    given = [f"--{name.replace('_', '-')}" for name in _ONE_KEY if options[name]]
    given += ["--format"] * (format_ != "summary")
    if given:
        raise UsageError(f"--by {by} and {given[0]} exclude each other", "leave one out, or name one key")
    views = views_of(by)
    chosen = Filter(glob, options["kind"], options["pid"], options["tid"], options["start"] or 0.0,
                    options["end"] or 0.0, options["hard"], options["soft"])  # fmt: skip
    with open_trace(files) as trace:
        told = TwoKeys(trace, chosen, views, options["sort"] or "")
        if options["json"]:
            print_json(told.as_dict())
        else:
            Output.standard("stdout").show(*told.parts(options["top"]))
    return 0


def _unshared(files: tuple[str, ...], options: dict[str, Any]) -> int:
    """Shows the copies of shared pages, as `wstrace unshared` does."""
    from wstrace import open_trace
    from wstrace_exporters.console.commands.unshared import show

    with open_trace(files) as trace:
        show(trace, [], options["top"], as_json=options["json"])
    return 0
