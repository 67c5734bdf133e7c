"""`wstrace merge`: writes parts of a trace, or traces of several hosts, as one file."""

from __future__ import annotations

from contextlib import ExitStack

import click

from wstrace.errors import UsageError
from wstrace.text import printable, size
from wstrace_exporters.msgpack.commands.info import unknown_lines
from wstrace_exporters.msgpack.read.discover import files_of
from wstrace_exporters.msgpack.read.part import Part
from wstrace_exporters.msgpack.read.same_trace import boot_of, refuse_copies
from wstrace_exporters.msgpack.read.trace import TraceFile
from wstrace_exporters.msgpack.storage.urls import Place
from wstrace_exporters.msgpack.write.copy import copy


@click.command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="OUT", required=True, help="The merged file.")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
def merge(paths: tuple[str, ...], output: str, force: bool) -> None:
    """Merge traces into one, in the order of their times.

    Traces of one boot of one machine keep their clock. Those of other hosts and boots are put on the first one's clock
    by their realtime, every process name gets its host (`name@host`), and equal pids of theirs stay apart.
    """
    traces: list[TraceFile] = []
    try:
        traces.extend(TraceFile(group) for group in _by_boot(paths))
        rows = copy(traces, output, force=force)
        unknown = [
            f"{trace.parts[0].path}: {line.strip()}" for trace in traces for line in unknown_lines(trace.unknown())
        ]
    finally:
        for trace in traces:
            trace.close()
    for line in unknown:
        click.echo(printable(line), err=True)
    click.echo(f"{printable(output)} holds {rows:,} rows of {sum(len(trace.parts) for trace in traces)} files")


def _by_boot(paths: tuple[str, ...]) -> list[list[Place]]:
    """The files, each once, grouped by the boot of the machine that they come from; each group has one clock."""
    groups: dict[str, list[Place]] = {}
    with ExitStack() as opened:
        parts = []
        for path in files_of(paths):
            parts.append(part := Part(path))
            opened.callback(part.close)
            groups.setdefault(boot_of(part), []).append(path)
        refuse_copies(parts)
        _refuse_other_pages(parts)
    return list(groups.values())


def _refuse_other_pages(parts: list[Part]) -> None:
    """Raises UsageError where pages are not of one size: a file tells one, by which all of its pages are counted."""
    of_size = {part.header.page_size: part.path for part in reversed(parts) if part.header.page_size}
    if len(of_size) > 1:
        told = ", ".join(f"{path} has pages of {size(n)}" for n, path in sorted(of_size.items()))
        raise UsageError(f"traces of different page sizes cannot be merged: {told}", "report each of them")
