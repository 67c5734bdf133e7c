"""`wstrace prefetch`: makes a list from a trace, applies one, or measures what that gains."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from wstrace.cli.common import Size, json_option, print_json
from wstrace.cli.target_words import TargetWords
from wstrace.errors import UsageError, WstraceError
from wstrace.output_file import whole_file
from wstrace.output_rights import callers_rights
from wstrace.text import duration, plural, printable, size
from wstrace_plugins.prefetch.applying import LIMIT, apply
from wstrace_plugins.prefetch.backend import backend
from wstrace_plugins.prefetch.start_list import GAP, encoded, read

if TYPE_CHECKING:
    from wstrace_plugins.prefetch.start_list import Range


class _AfterDashes(TargetWords):
    """Options may stand anywhere before `--`, behind which the command begins."""

    def begins_target(self, word: str) -> bool:
        """Only `--` begins it."""
        return False


@click.command(cls=_AfterDashes, options_metavar="[OPTIONS]", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--output", metavar="FILE", help="Write the list of the trace to FILE.")
@click.option("-f", "--force", is_flag=True, help="Overwrite FILE.")
@click.option("--gap", type=Size(), default=GAP, metavar="SIZE", help="Join parts of a file this near (16KiB).")
@click.option("--apply", "path", metavar="LIST", help="Read the files of a list ahead; then run COMMAND, if any.")
@click.option("--compare", is_flag=True, help="Measure COMMAND cold and warm, with and without a list.")
@click.option("--runs", type=click.IntRange(1, 1000), default=11, show_default=True, help="Rounds of --compare.")
@click.option("--limit", type=Size(), default=LIMIT, metavar="SIZE", help="Read at most this much ahead (1GiB).")
@click.option("--below", multiple=True, metavar="DIR", help="Read only files in this folder ahead; may be repeated.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TRACE.wst] [-- COMMAND]")
@click.pass_context
def prefetch(ctx: click.Context, /, words: tuple[str, ...], **options: Any) -> int:
    """Read what a start needs of its files ahead of it, by a list made from the trace of an earlier start.

    \b
    wstrace run -o x.wst -- COMMAND                      record a start
    wstrace prefetch x.wst -o start.list                 make the list
    wstrace prefetch --apply start.list                  read it ahead, for example at boot
    wstrace prefetch --apply start.list -- COMMAND       read it ahead beside the command
    wstrace prefetch --compare -- COMMAND                does it help?

    Behind --apply, COMMAND takes the place of wstrace: its exit code and signals are its own, and it runs whatever
    becomes of the list.
    """
    literal = ctx.meta["wstrace.literal"]
    command = words if literal else ()
    if options["compare"]:
        if not command:
            raise UsageError("no command to compare", "write: wstrace prefetch --compare -- COMMAND ...")
        return _compare(command, options)
    if options["path"] is None:
        if literal or len(words) != 1 or options["output"] is None:
            raise UsageError(
                "what is to be done?", "write: wstrace prefetch TRACE.wst -o LIST, or --apply LIST, or --compare"
            )
        return _make(words[0], options)
    if words and not literal:
        raise UsageError(f"--apply takes no trace {words[0]}", "write -- before the command")
    if literal:
        return _run_with(options, command)
    return _apply(options)


def _make(trace_path: str, options: dict[str, Any]) -> int:
    import wstrace
    from wstrace_plugins.prefetch.making import made

    with wstrace.open_trace(trace_path) as trace:
        found = made(trace, backend(), options["gap"])
        note = "; ".join(filter(None, (printable(trace.info.incomplete), found.note)))
    if not found.ranges:
        raise UsageError(f"{trace_path} touches no file that could be read ahead", note)
    with whole_file(options["output"], force=options["force"]) as file:
        file.writelines(encoded(found.ranges))
    files = len({one.file for one in found.ranges})
    if not options["quiet"]:
        n_bytes = sum(one.length for one in found.ranges)
        _say(f"{size(n_bytes)} of {plural(files, 'file')} in {plural(len(found.ranges), 'range')} are in "
             f"{printable(options['output'])}")  # fmt: skip
        if note:
            _say(f"note: {note}")
    return 0


def _apply(options: dict[str, Any]) -> int:
    system, ranges, begun = backend(), read(options["path"]), time.perf_counter()
    with callers_rights():
        done = apply(ranges, system, limit=options["limit"], below=_folders(options), wait=True)
    took = time.perf_counter() - begun
    if options["as_json"]:
        print_json({"schema": 1, "bytes": done.n_bytes, "ranges": done.ranges, "files": len(done.files),
                    "seconds": took, "skipped": [{"why": why, "ranges": n, "files": len(files)}
                                for why, (n, files) in sorted(done.skipped.items())]})  # fmt: skip
    elif not options["quiet"]:
        _say(f"{done} read ahead in {duration(took)}")
        if done.note:
            _say(f"note: {done.note}")
    return 0


def _run_with(options: dict[str, Any], command: tuple[str, ...]) -> int:
    """Takes the command's place; what is wrong with the list is told, and does not keep it from running."""
    if not command:
        raise UsageError("no command to run", "write: wstrace prefetch --apply LIST -- COMMAND ...")
    system = backend()
    path = system.find(command)
    try:
        ranges: list[Range] = read(options["path"])
    except WstraceError as error:
        _say(f"nothing is read ahead: {printable(str(error))}")
        ranges = []
    folders = _folders(options)

    def work() -> None:
        with suppress(OSError, WstraceError):  # whatever becomes of it, the command runs
            with callers_rights():
                note = apply(ranges, system, limit=options["limit"], below=folders).note
            if note and not options["quiet"]:
                os.write(2, f"wstrace: note: {note}\n".encode())

    if ranges:
        system.beside(work)
    system.become(path, command)


def _say(text: str) -> None:
    click.echo(f"wstrace: {text}", err=True)


def _folders(options: dict[str, Any]) -> list[str]:
    return [os.path.realpath(folder) for folder in options["below"]]


def _compare(command: tuple[str, ...], options: dict[str, Any]) -> int:
    from wstrace_plugins.prefetch.comparing import Comparison, recorded

    system = backend()
    if options["path"] is None:
        code, found = recorded(command, system, options["gap"])
        if code:
            return code
        ranges = found.ranges
    else:
        ranges = read(options["path"])
    if not ranges:
        raise UsageError("the list has no ranges: there is nothing to compare")
    comparison = Comparison(command, ranges, system, limit=options["limit"])
    if code := comparison.run(options["runs"]):
        return code
    if options["as_json"]:
        print_json(comparison.plain())
    else:
        for line in comparison.lines():
            click.echo(line)
    return 0
