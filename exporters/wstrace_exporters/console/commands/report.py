"""`wstrace report`: who brought the memory of a trace file, a command or a running process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from wstrace.cli.common import Duration, print_json, time_window
from wstrace.errors import UsageError
from wstrace.text import damage_note, estimates_note, number, printable
from wstrace_exporters.console.recorded import TOP, TraceWords, recording_options, trace_of

if TYPE_CHECKING:
    from wstrace.analysis.filter import Filter
    from wstrace.trace import Trace


@click.command(cls=TraceWords, options_metavar="[OPTIONS]")
@click.option("--by", default="", metavar="DIM[,DIM]", help="line, function, package, import, stack, file, module, "
              "section, kind, process, thread, cgroup, instruction; or several of them.")  # fmt: skip
@click.option("--at", default="", metavar="peak|exit|start|MARK", help="Moment (default: peak; of a PID its end).")
@click.option(
    "--sort", default="", metavar="MEASURE", help="Order of the rows: resident, private, faults, from_disk ..."
)
@TOP
@click.option("--html", metavar="FILE.html", help="Write a report with pictures in one offline file instead.")
@click.option("--format", "format_", type=click.Choice(["summary", "lines", "jsonl", "folded"]), default="summary",
              metavar="FORMAT", help="lines: VA PC owner via module; jsonl; folded: for flame graphs.")  # fmt: skip
@click.option("--over-time", "step", type=Duration(), metavar="1s",
              help="What grew, at moments this far apart; a new trace takes snapshots this often.")  # fmt: skip
@click.option("--own", multiple=True, metavar="PATH", help="Files below PATH are the program's own; may be repeated.")
@click.option("--not-own", multiple=True, metavar="PATH", help="Files below PATH are not; may be repeated.")
@click.option("--file", "glob", metavar="GLOB", default="", help="Only pages of '[heap]', libc.so.6, '*.so*'.")
@click.option(
    "--kind", multiple=True, metavar="KIND", help="Only anon, heap, stack, file, shared ...; may be repeated."
)
@click.option("--pid", type=click.IntRange(0), multiple=True, help="Only this process; may be repeated.")
@click.option("--tid", type=click.IntRange(0), multiple=True, help="Only faults of this thread; may be repeated.")
@click.option("--hard", is_flag=True, help="Only faults that read from disk, and their pages.")
@click.option("--soft", is_flag=True, help="Only faults that did not.")
@time_window
@recording_options
def report(ctx: click.Context, /, target: tuple[str, ...], *, by: str, html: str | None, **options: Any) -> int:
    """Show who brought the memory of a trace file, a command or a running process.

    \b
    wstrace report out.wst --by package
    wstrace report -- python3 app.py        at its peak
    wstrace report 4711 --duration 10s      what it grew by
    wstrace report out.wst --html report.html
    wstrace report out.wst --format folded | flamegraph.pl > faults.svg
    """
    format_, step = options.pop("format_"), options["step"]
    top = ctx.get_parameter_source("top") is ParameterSource.COMMANDLINE
    table = by or options["sort"] or options["as_json"] or top
    if html is not None and (not html or table or _chosen(options)):
        raise UsageError("--html FILE has all of a trace, and no table by a choice", "leave the other options out")
    if format_ != "summary" and (table or step or options["at"] or (format_ == "folded" and _chosen(options))):
        raise UsageError(f"--format {format_} has every fault, and no table by a choice", "leave the other options out")
    if step:
        # So rarely that a snapshot, which holds the lock of the target's mappings, takes 1 % of the time at most.
        options["sources"] = (f"working_set:interval={step},max_cpu=0.01", *options["sources"])
    with trace_of(target, options, literal=ctx.meta["wstrace.literal"]) as (trace, code):
        if html:
            faults, damage = trace.html(html, force=options["force"], at=options["at"]), damage_note(trace.state)
            click.echo(f"{printable(html)}: {number(faults)} faults{damage}", err=True)
        elif format_ == "folded":
            _folded(trace)
        elif format_ != "summary":
            _faults(trace, options, as_json=format_ == "jsonl")
        elif step:
            _over_time(trace, step, by or "line", options)
        else:
            _show(trace, tuple(word for word in by.split(",") if word), options)
    return code


def _chosen(options: dict[str, Any]) -> Filter:
    """The faults and pages that are wanted."""
    from wstrace.analysis.filter import Filter

    return Filter(options["glob"], options["kind"], options["pid"], options["tid"], options["start"] or 0.0,
                  options["end"] or 0.0, options["hard"], options["soft"])  # fmt: skip


def _show(trace: Trace, by: tuple[str, ...], options: dict[str, Any]) -> None:
    from wstrace.analysis.own import OwnRule
    from wstrace.analysis.report import report as made
    from wstrace_exporters.console.report_table import parts, show

    found = made(trace, by or ("line",), options["at"], lead=options["sort"], chosen=_chosen(options),
                 rule=OwnRule(options["own"], options["not_own"]))  # fmt: skip
    if options["as_json"]:
        print_json(found.as_dict())
        return
    everything = bool(by or options["verbose"])
    show(parts(found, options["top"], everything=everything), everything=everything)


def _folded(trace: Trace) -> None:
    """Prints a line for each stack."""
    import sys

    from wstrace_exporters.console.folded import write

    write(trace, sys.stdout.buffer)
    if note := estimates_note(trace.info.sampled):
        click.echo(note, err=True)


def _over_time(trace: Trace, step: float, by: str, options: dict[str, Any]) -> None:
    """Prints what is resident at moments that are `step` seconds apart."""
    from wstrace.analysis.compare import OverTime
    from wstrace_exporters.console.report_table import over_time, show

    if "," in by:
        raise UsageError(f"--by {by}", "name one dimension with --over-time")
    found = OverTime(trace, step, by, options["pid"])
    if options["as_json"]:
        print_json(found.report().as_dict())
    else:
        everything = options["verbose"]
        show(over_time(found, options["top"], everything=everything), everything=everything)


def _faults(trace: Trace, options: dict[str, Any], *, as_json: bool) -> None:
    """Prints a line for each fault, then on stderr what was lost."""
    from wstrace.analysis.symbols import symbolizer_of
    from wstrace.table import Selection
    from wstrace.terminal import Output
    from wstrace_exporters.console.console import losses
    from wstrace_exporters.console.lines import lines_of

    chosen, output = _chosen(options), Output.standard("stdout")
    chosen.origin_ns = trace.info.started_ns
    for block in lines_of(trace.read(Selection()), symbolizer_of(trace.info, ()), chosen, as_json=as_json):
        output.write(block)
        if output.broken:
            return
    Output.standard("stderr").write(losses(trace.ledger))
