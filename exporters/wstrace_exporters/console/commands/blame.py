"""`wstrace blame`: whose bytes are resident, of a command, a running process or a trace file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wstrace.analysis.blame.orders import SORTS, VIEWS
from wstrace.cli.common import Duration, print_json
from wstrace.errors import UsageError
from wstrace_exporters.console.recorded import TraceWords, recording_options, trace_of

if TYPE_CHECKING:
    from wstrace.analysis.blame.rows import Blame
    from wstrace.trace import Trace

EXPLAIN = """\
Each resident page is told by the fault that made it arrive: the first since its address last lost its content.
  resident   bytes that are in memory at that moment; the Total is the sum of the Rss of the processes
  private    of these, what no other process has; shared: what others have too
  copied     of these, what a child process copied by writing to a page of its parent: `loaded by` names the line that
             had loaded most of it. The parent keeps its own, also where it was the one that had to copy
  written    bytes of pages that were there already when a fault of this row wrote them
  brought    bytes of all pages that arrived, those that are gone again included
  again      bytes of pages that arrived although they had been there before: churn
  from disk  bytes whose fault read from disk, at least
  samples    native stacks (stacks=native) that stand for the row's other faults
Blame is by first touch: memory that malloc gives out again stays with the line that touched it first. It tells who
made the process big, not which objects are alive: for these use a heap profiler such as memray. A leak is told by
growth: compare two moments.
(not known) is what has no known owner: pages from before the trace, pages that came without a fault (MAP_POPULATE,
mlock, direct I/O), and pages of which records were lost. ~ marks an estimate: a rule and not a record decided. A page
of a file comes with others around it: it belongs to the earliest fault in its 64 KiB, then in its 2 MiB. With one of
several faults recorded (page_faults:period=7) only pages of recorded faults have an owner."""


#: The views of which a table can be by two, and how these are written.
TWO = f"{', '.join(VIEWS)} (as process,line)"


@click.command(cls=TraceWords, options_metavar="[OPTIONS]", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--by", default="", metavar="VIEW[,VIEW]", help=f"One table: {', '.join(VIEWS)}, or two of them.")
@click.option("--sort", type=click.Choice(SORTS), default="resident", show_default=True, help="Order of the rows.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Rows of a table; JSON has all.")
@click.option("--at", metavar="peak|exit|start|MARK", help="The moment (default: peak; of a recording its trigger's).")
@click.option("--pid", "pids", type=click.IntRange(0), multiple=True, help="Only this process; may be repeated.")
@click.option(
    "--kind", "kinds", multiple=True, metavar="KIND", help="Only anon, heap, stack, file, shared ...; may be repeated."
)
@click.option("--over-time", "step", type=Duration(), metavar="1s",
              help="At moments that are so far apart, and what grew; a new trace is read so often.")  # fmt: skip
@recording_options
@click.option("--explain", is_flag=True, help="Say what the columns and rows mean.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="FILE.wst | PID | [--] COMMAND")
@click.pass_context
def blame(ctx: click.Context, /, target: tuple[str, ...], *, explain: bool, **options: Any) -> int:
    """Show whose bytes are resident: by line, function, package, file and kind of memory.

    \b
    wstrace blame -- python3 app.py     at its peak
    wstrace blame 4711 --duration 10s   of a running process: what came in that time
    wstrace blame x.wst --by package    of a recorded trace
    wstrace blame 4711 --duration 1m --over-time 5s
    """
    if explain:
        click.echo(EXPLAIN)
        if not target:
            return 0
    views = views_of(options["by"])
    if step := options["step"]:
        # So rarely that a look, which holds the lock of the target's mappings, takes 1 % of the time at most.
        options["sources"] = (f"working_set:interval={step},max_cpu=0.01", *options["sources"])
    with trace_of(target, options, literal=ctx.meta["wstrace.literal"]) as (trace, code):
        from wstrace.analysis.blame import recording
        from wstrace.analysis.blame.rows import as_dict

        if step:
            _over_time(trace, step, views or ["line"], options, as_json=options["as_json"])
            return code
        at = options["at"] or recording.moment_of(trace.info)
        pids = options["pids"] or recording.pids_of(trace.info)
        told = trace.blame(at=at, pids=pids, kinds=options["kinds"], threads="thread" in views)
        if options["as_json"]:
            of_recording = {"recording": of} if (of := recording.as_dict(told)) else {}
            print_json({**as_dict(told, views or ["line"], options["sort"]), **of_recording})
        else:
            _show(told, views, options["sort"], options["top"])
    return code


def views_of(by: str) -> list[str]:
    """The views that `--by` names. Raises UsageError."""
    views = [word for word in by.split(",") if word]
    for view in views:
        if view not in VIEWS:
            raise UsageError(f"--by {view}", f"known: one or two of {TWO}")
    if len(set(views)) != len(views) or len(views) > 2:
        raise UsageError(f"--by {by}", "name one or two different views")
    return views


def _show(told: Blame, views: list[str], sort: str, top: int) -> None:
    from wstrace.terminal.output import Output
    from wstrace_exporters.console.blame_tables import parts

    Output.standard("stdout").show(*parts(told, views, sort, top))


def _over_time(trace: Trace, step: float, views: list[str], options: dict[str, Any], *, as_json: bool) -> None:
    from wstrace.analysis.blame.over_time import OverTime
    from wstrace.terminal.output import Output
    from wstrace_exporters.console.over_time_tables import parts

    if len(views) > 1:
        raise UsageError(f"--by {options['by']}", "name one view with --over-time")
    if options["kinds"]:
        raise UsageError("--kind and --over-time exclude each other", "leave one out, or use --over-time --by kind")
    told = OverTime(trace, step, views[0], options["pids"])
    if as_json:
        print_json(told.as_dict())
    else:
        Output.standard("stdout").show(*parts(told, options["top"]))
