"""`wstrace blame`: whose bytes are resident, of a command, a running process or a trace file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wstrace.cli.common import Duration, print_json
from wstrace.cli.run import TargetWords, command_of
from wstrace.errors import TargetExited, UsageError

if TYPE_CHECKING:
    from wstrace.analysis.blame.rows import Blame
    from wstrace.trace import Trace

_VIEWS = ["line", "function", "file", "package", "kind", "process"]
_SORTS = ["resident", "private", "shared", "brought", "written", "from_disk", "faults"]

EXPLAIN = """\
Each resident page is told by the fault that made it arrive: the first since its address last lost its content.
  resident   bytes that are in memory at that moment; the Total is the sum of the Rss of the processes
  private    of these, what no other process has; shared: what others have too
  written    bytes of pages that were there already when a fault of this row wrote them
  brought    bytes of all pages that arrived, those that are gone again included
  from disk  bytes whose fault read from disk, at least
Blame is by first touch: memory that malloc gives out again stays with the line that touched it first. It tells who
made the process big, not which objects are alive: for these use a heap profiler such as memray. A leak is told by
growth: compare two moments. A page that a child process copied belongs to the line that wrote it.
Rows in parentheses have no line: (came without a fault) are pages that MAP_POPULATE, mlock or direct I/O made
resident; (before the trace) those that were there when it began. ~ marks rows that hold bytes which may as well be
another row's: two faults could have brought them, or what happened to them in between was not recorded."""


class _Words(TargetWords):
    """Options may stand behind a trace file or a PID, but not behind the command to run."""

    def begins_target(self, word: str) -> bool:
        """Whether the word is a command."""
        return not (word.isdigit() or _is_trace(word))


@click.command(cls=_Words, options_metavar="[OPTIONS]", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--by", default="", metavar="VIEW[,VIEW]", help=f"One table: {', '.join(_VIEWS)}, or two of them.")
@click.option("--sort", type=click.Choice(_SORTS), default="resident", show_default=True, help="Order of the rows.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Rows of a table; JSON has all.")
@click.option("--at", default="peak", metavar="peak|exit|start|MARK", show_default=True, help="The moment.")
@click.option("--pid", "pids", type=click.IntRange(0), multiple=True, help="Only this process; may be repeated.")
@click.option("--duration", type=Duration(), metavar="30s|5m", help="Of a PID: end after this time, not at Ctrl-C.")
@click.option("-o", "--output", metavar="FILE", help="Keep the trace in FILE.")
@click.option("-f", "--force", is_flag=True, help="Overwrite FILE.")
@click.option("-s", "--source", "sources", multiple=True, metavar="NAME[:OPT=VAL,...]", help="Add a source.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--explain", is_flag=True, help="Say what the columns and rows mean.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="FILE.wst | PID | [--] COMMAND")
@click.pass_context
def blame(ctx: click.Context, /, target: tuple[str, ...], *, explain: bool, **options: Any) -> int:
    """Show whose bytes are resident: by line, function, package, file and kind of memory.

    \b
    wstrace blame -- python3 app.py     at its peak
    wstrace blame 4711 --duration 10s   of a running process: what came in that time
    wstrace blame x.wst --by package    of a recorded trace
    """
    if explain:
        click.echo(EXPLAIN)
        if not target:
            return 0
    views = _views(options["by"])
    with _trace(target, options, literal=ctx.meta["wstrace.literal"]) as (trace, code):
        from wstrace.analysis.blame.rows import as_dict

        told = trace.blame(at=options["at"], pids=options["pids"])
        if options["as_json"]:
            print_json(as_dict(told, views or ["line"], options["sort"]))
        else:
            _show(told, views, options["sort"], options["top"])
    return code


def _views(by: str) -> list[str]:
    """The views that `--by` names. Raises UsageError."""
    views = [word for word in by.split(",") if word]
    for view in views:
        if view not in _VIEWS:
            raise UsageError(f"--by {view}", f"known: {', '.join(_VIEWS)}")
    if len(set(views)) != len(views) or len(views) > 2:
        raise UsageError(f"--by {by}", "name one or two different views")
    return views


@contextmanager
def _trace(target: tuple[str, ...], options: dict[str, Any], *, literal: bool) -> Iterator[tuple[Trace, int]]:
    """The trace to tell of, and the exit code to pass on: a recorded one, or one that is recorded now."""
    import wstrace

    if not literal and not target:
        raise UsageError("nothing to blame", "write: wstrace blame FILE.wst, PID, or -- COMMAND")
    recorded = not literal and len(target) == 1 and not target[0].isdigit() and _is_trace(target[0])
    if recorded:
        with wstrace.open_trace(target[0]) as trace:
            yield trace, 0
        return
    with tempfile.TemporaryDirectory(prefix="wstrace-") as folder:
        path = options["output"] or os.path.join(folder, "blame.wst")
        code = _record(target, options, path, literal=literal)
        with wstrace.open_trace(path) as trace:
            yield trace, code


def _is_trace(path: str) -> bool:
    return path.endswith(".wst") or path == "-" or (Path(path).is_file() and not os.access(path, os.X_OK)
                                                    and not path.endswith((".py", ".pyw")))  # fmt: skip


def _record(target: tuple[str, ...], options: dict[str, Any], path: str, *, literal: bool) -> int:
    """Records a trace of a command or a running process. Returns the exit code to pass on."""
    from wstrace.cli.tracing import Trace as Recording
    from wstrace.cli.tracing import Tracing

    attached = not literal and len(target) == 1 and target[0].isdigit()
    sources = ("working_set", *options["sources"])
    told = Tracing(sources=sources, exporters=(), plugin=("no:console",), no_plugins=False, output=path,
                   force=options["force"], duration=options["duration"], children=True, wait_children=False,
                   quiet=True, verbose=False, live=False, fail_on_loss=False, require="", config=None)  # fmt: skip
    recording = Recording(told)
    platform = recording.plugins.platform
    command = () if attached else command_of(target, literal=literal)
    if attached and int(target[0]) == os.getpid():
        raise TargetExited("a process cannot be asked about itself", "use trace.blame() in a Session")
    process = platform.attach(int(target[0])) if attached else platform.launch(command)
    try:
        session = recording.session([process], command)
        recording.drive(session)
        return recording.exit_code(session)
    finally:
        process.close()


def _show(told: Blame, views: list[str], sort: str, top: int) -> None:
    from wstrace.terminal.output import Output
    from wstrace_console.blame_tables import parts

    Output.standard("stdout").show(*parts(told, views, sort, top))
