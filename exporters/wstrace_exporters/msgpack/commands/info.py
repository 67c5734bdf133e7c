"""`wstrace info`: shows what a trace file holds, and whether it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from wstrace.analysis.tally import distinct
from wstrace.cli.common import print_json
from wstrace_exporters.msgpack.read.trace import TraceFile, open_trace


@click.command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--quick", is_flag=True, help="Trust the index of a file that has its end; do not check every byte.")
def info(paths: tuple[str, ...], as_json: bool, quick: bool) -> None:
    """Show a file's header, streams, span, processes and ledger, and whether it is clean, cut or damaged."""
    with open_trace(paths) as trace:
        trace.trusting = quick
        facts = describe(trace)
    if as_json:
        print_json(facts)
        return
    from wstrace.text import printable

    for line in _lines(facts):
        click.echo(printable(line))


def describe(trace: TraceFile) -> dict[str, Any]:
    """What `info` shows, as plain values. FORMAT.md documents the keys."""
    header = trace.header
    state = trace.state  # every byte is checked before anything is read
    span, names = trace.span(), trace.process_names()
    unnamed = len(distinct(trace.processes["pid"])) - len(names) if "pid" in trace.processes else 0
    return {
        "files": [part.path for part in trace.parts],
        "state": state,
        "missing": trace.missing,
        "missing_parts": trace.missing_parts,
        "damage": trace.damage(),
        "version": list(header.version),
        "writer": header.writer,
        "created_ns": header.created_ns,
        "command": header.command,
        "host": header.host,
        "page_size": header.page_size,
        "clock": header.clock,
        "bytes": sum(part.input.size for part in trace.parts),
        "frames": sum(len(part.entries) for part in trace.parts),
        "rows": trace.rows,
        "kernel_lost": trace.lost,
        "span_ns": None if span is None else [span[0], span[1]],
        "mappings": len(trace.mappings),
        "processes": names,
        **({"processes_left_out": unnamed} if unnamed > 0 else {}),
        "marks": [mark for mark in trace.marks if mark.get("m") not in ("clock", "facts", "ledger", "schema")],
        **({"unknown": unknown} if (unknown := trace.unknown()) else {}),
        "unreadable_columns": trace.unreadable,
        "ledger": trace.ledger.as_dict(),
        "facts": trace.facts,
    }


def unknown_lines(unknown: dict[str, Any]) -> Iterator[str]:
    """Yields TraceFile.unknown() as lines of text."""
    if version := unknown.get("version"):
        yield f"  its format is a later version than this wstrace knows: {version}"
    if frames := unknown.get("frames"):
        yield f"  frames of unknown kinds, passed over: {sum(frames.values()):,}"
    if columns := unknown.get("columns"):
        yield f"  columns that cannot be read: {', '.join(columns)}"


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    """The facts of a file as text."""
    from wstrace.text import duration, plural, size

    rows = facts["rows"]
    yield f"{', '.join(facts['files'])}: {facts['state']}, {size(facts['bytes'])}, {plural(facts['frames'], 'frame')}"
    yield from (f"  {words}" for words in facts["missing_parts"])
    for name, n in {"records that it lacks": facts["missing"], **facts["damage"]}.items():
        if n:
            yield f"  {name.replace('_', ' ')}: {n:,}"
    yield from unknown_lines(facts.get("unknown", {}))
    host = facts["host"]
    where = " ".join(str(host[key]) for key in ("system", "release", "machine", "name") if host.get(key))
    yield f"written by {facts['writer'] or '?'} on {where or '?'}"
    if facts["command"]:
        yield f"command: {' '.join(facts['command'])}"
    if facts["span_ns"]:
        yield f"span: {duration((facts['span_ns'][1] - facts['span_ns'][0]) / 1e9)}"
    for stream, n in sorted(rows.items()):
        lost = facts["kernel_lost"].get(stream, 0)
        yield f"  {stream}: {plural(n, 'row')}" + (f", {lost:,} lost in the kernel" if lost else "")
    for pid, names in list(facts["processes"].items())[:20]:
        yield f"process {pid}: {' -> '.join(names)}"
    if len(facts["processes"]) > 20:
        more = len(facts["processes"]) - 20 + facts.get("processes_left_out", 0)
        yield f"... and {more:,} processes more"
    for mark in facts["marks"]:
        yield "mark: " + ", ".join(f"{key}={value}" for key, value in mark.items())
    for stage, n in facts["ledger"].items():
        yield f"ledger {stage}: {n:,}"
