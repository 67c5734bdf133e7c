"""The trace that a command tells of: a file, or one of a command or process that is recorded for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wstrace.cli.common import Duration, sources_option
from wstrace.cli.run import TargetWords, command_of
from wstrace.errors import OutputError, TargetExited, UsageError
from wstrace.output_file import temporary_folder

#: What to do where a trace lacks records that was kept for one answer only, so that there is no file to read.
_LESS = "run it again where less else runs, or record less: -s page_faults:period=7"

if TYPE_CHECKING:
    from wstrace.trace import Trace


class TraceWords(TargetWords):
    """Options may stand behind a trace file or a PID, but not behind the command to run."""

    def begins_target(self, word: str) -> bool:
        """Whether the word is a command."""
        return not (word.isdigit() or is_trace(word))


TOP = click.option(
    "--top", type=click.IntRange(1), default=10, show_default=True, help="Rows of a table; JSON has all."
)
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="All columns, and notes.")
_OPTIONS = (
    VERBOSE,
    click.option("--duration", type=Duration(), metavar="30s|5m", help="Of a PID: end after this time, not at Ctrl-C."),
    click.option("-o", "--output", metavar="FILE", help="Keep the trace in FILE."),
    click.option("-f", "--force", is_flag=True, help="Overwrite FILE."),
    sources_option,
    click.option("--json", "as_json", is_flag=True, help="One JSON object."),
    click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="FILE.wst | PID | [--] COMMAND"),
)


def recording_options(command: Callable[..., int]) -> Callable[..., int]:
    """Adds what trace_of() takes, -v and --json, to the options of a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return click.pass_context(command)


@contextmanager
def trace_of(target: tuple[str, ...], options: dict[str, Any], *, literal: bool) -> Iterator[tuple[Trace, int]]:
    """The trace to tell of, and the exit code to pass on: a recorded one, or one that is recorded now.

    target: what the user named. literal: whether `--` stood before it, so that it is a command. options: of the
    command: output, force, duration, sources. Raises OutputError: the trace lacks records; after the report of what is
    there, if there is any.
    """
    import wstrace

    if not literal and not target:
        raise UsageError("no trace, process or command was named", "write FILE.wst, a PID, or -- COMMAND")
    recorded = not literal and not target[0].isdigit() and all(map(is_trace, target))
    if recorded:
        with wstrace.open_trace(target[0] if len(target) == 1 else target) as trace:
            yield trace, 0
        return
    with temporary_folder() as folder:
        path = options["output"] or os.path.join(folder, "report.wst")
        before = _identity(path)
        failed: OutputError | None = None
        code = 0
        try:
            code = _record(target, options, path, literal=literal)
        except OutputError as error:  # what is there is shown, then what it lacks
            if _identity(path) == before:  # none was made: an older one tells of another run
                raise
            failed = error
        with wstrace.open_trace(path) as trace:
            yield trace, code
            lacks = trace.info.incomplete
        if failed and lacks and not options["output"]:
            raise OutputError(lacks.replace(path, "the trace"), _LESS) from failed
        if failed:
            raise failed


def _identity(path: str) -> tuple[int, int, int] | None:
    """What tells a file from the one that takes its place; None = there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def is_trace(path: str) -> bool:
    """Whether a word is a trace file, and not a command to run."""
    return path.endswith(".wst") or path == "-" or (Path(path).is_file() and not os.access(path, os.X_OK)
                                                    and not path.endswith((".py", ".pyw")))  # fmt: skip


def _record(target: tuple[str, ...], options: dict[str, Any], path: str, *, literal: bool) -> int:
    """Records a trace of a command or a running process. Returns the exit code to pass on."""
    from wstrace.cli.tracing import Recording, Tracing

    attached = not literal and len(target) == 1 and target[0].isdigit()
    # an attached process is read at the start and at the end; a command has its peak besides
    sources = (*["peak_snapshot"] * (not attached), "working_set", *options["sources"])
    tracing = Tracing(sources, plugin=("no:console",), output=path, force=options["force"],
                      duration=options["duration"], children=True, quiet=True)  # fmt: skip
    recording = Recording(tracing)
    platform = recording.plugins.platform
    command = () if attached else command_of(target, literal=literal)
    if attached and int(target[0]) == os.getpid():
        raise TargetExited("a process cannot report on itself", "use trace.report() in a Session")
    process = platform.attach(int(target[0])) if attached else platform.launch(command)
    with closing(process):
        return recording.record([process], command)
