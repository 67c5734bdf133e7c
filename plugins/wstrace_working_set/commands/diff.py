"""`wstrace diff A.wst B.wst`: what the second trace's last snapshot has more or less than that of the first."""

from __future__ import annotations

import click
import numpy as np

import wstrace
from wstrace.analysis.snapshots import LastSnapshots
from wstrace.analysis.symbols import UNKNOWN
from wstrace.batch import Batch
from wstrace.cli.common import json_option, print_json
from wstrace.errors import TraceFileError
from wstrace.schema import KINDS
from wstrace.terminal.output import Output
from wstrace.terminal.table import Column, TextTable, rows_to_show
from wstrace.text import base_name, printable, size

Owned = dict[str, int]


@click.command()
@click.argument("first", metavar="A.wst")
@click.argument("second", metavar="B.wst")
@click.option("--by", type=click.Choice(["file", "module", "kind"]), default="file", help="file = by path.")
@click.option("--all", "everything", is_flag=True, help="Also what did not change.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows of the table; JSON has all.")
@json_option
def diff(first: str, second: str, by: str, everything: bool, top: int, as_json: bool) -> None:
    """Compare the resident pages of two trace files by owner: the last whole snapshot of each process, added up."""
    before, after = _owned(first, by), _owned(second, by)
    changes = {name: after.get(name, 0) - before.get(name, 0) for name in {*before, *after}}
    order = sorted(changes, key=lambda name: (-abs(changes[name]), name))
    rows = [(name, before.get(name, 0), after.get(name, 0)) for name in order if everything or changes[name]]
    a, b = sum(before.values()), sum(after.values())
    if as_json:
        owners = [{"name": name, "first": a, "second": b, "change": b - a} for name, a, b in rows]
        print_json({"first": a, "second": b, "change": b - a, "owners": owners})
        return
    cells = [[_signed(b - a), size(a), size(b), name] for name, a, b in rows[: rows_to_show(len(rows), top)]]
    columns = [Column("change", spare=False), Column("first"), Column("second"), Column(by, "name")]
    cells.append([_signed(b - a), size(a), size(b), "Total"])
    Output.standard("stdout").show(TextTable(columns, cells, total=len(rows) + 1))


def _signed(n_bytes: int) -> str:
    return ("+" if n_bytes > 0 else "-" if n_bytes < 0 else " ") + size(abs(n_bytes))


def _owned(path: str, by: str) -> Owned:
    """Resident bytes by owner. Raises TraceFileError when the file has no whole snapshot."""
    with wstrace.open_trace(path) as trace:
        page_size = trace.header.page_size
        snapshots: LastSnapshots[Owned] = LastSnapshots(dict, lambda owned, part: _count(part, by, page_size, owned))
        for batch in trace.batches("resident"):
            snapshots.add(batch)
    if not snapshots.pids:
        raise TraceFileError(
            f"{printable(path)} holds no whole snapshot", "record one: wstrace snapshot PID -o FILE, or -s working_set"
        )
    found: Owned = {}
    for _, owned in snapshots:
        for name, n_bytes in owned.items():
            found[name] = found.get(name, 0) + n_bytes
    return found


def _count(batch: Batch, by: str, page_size: int, found: Owned) -> None:
    column = "kind" if by == "kind" else "file"
    codes = batch[column] if column in batch else np.zeros(len(batch), np.intp)  # a stranger's file need not have it
    pages = np.bincount(codes, batch["pages"])
    for code in np.flatnonzero(pages).tolist():
        name = KINDS[min(code, len(KINDS) - 1)] if by == "kind" else batch.strings[code] or UNKNOWN
        name = base_name(name) if by == "module" else name
        found[name] = found.get(name, 0) + int(pages[code]) * page_size
