"""`wstrace merge`: parts of a trace, or traces of several hosts, as one file."""

from __future__ import annotations

import click

from wstrace_msgpack.read.discover import parts_of
from wstrace_msgpack.read.part import Part
from wstrace_msgpack.read.trace import TraceFile
from wstrace_msgpack.write.copy import copy


@click.command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="OUT", required=True, help="The merged file.")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
def merge(paths: tuple[str, ...], output: str, force: bool) -> None:
    """Merge traces into one, in the order of their times.

    Traces of one boot of one machine keep their clock. Those of other hosts are put on the first one's clock by their
    realtime, and every process name gets its host: `name@host`.
    """
    traces: list[TraceFile] = []
    try:
        traces.extend(TraceFile(group) for group in _by_boot(paths))
        rows = copy(traces, output, force=force)
    finally:
        for trace in traces:
            trace.close()
    click.echo(f"{output} holds {rows:,} rows of {sum(len(trace.parts) for trace in traces)} files")


def _by_boot(paths: tuple[str, ...]) -> list[list[str]]:
    """The files, each once, grouped by the boot of the machine that they come from: one clock a group."""
    groups: dict[str, list[str]] = {}
    seen: set[bytes | None] = set()
    for path in (found for given in paths for found in parts_of(given)):
        part = Part(path)
        part.close()
        if part.file_id not in seen:
            seen.add(part.file_id)
            groups.setdefault(part.header.boot_id or path, []).append(path)
    return list(groups.values())
