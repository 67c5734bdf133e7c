"""`wstrace snapshot PID`: what is in a process's memory, and whose it is."""

from __future__ import annotations

from typing import Any, Literal

import click

from wstrace.cli.common import json_option, print_json
from wstrace.cli.privilege import debug_privilege
from wstrace.terminal.bar import Bar
from wstrace.terminal.output import Output
from wstrace.terminal.table import Cell, Column, TextTable, rows_to_show
from wstrace.text import printable, size, well_formed
from wstrace_plugins.working_set.working_set import By, Owner, WorkingSet, working_set

SnapshotBy = By | Literal["section"]


@click.command()
@click.argument("pid", type=int)
@click.option("--by", type=click.Choice(["module", "section", "mapping", "kind"]),
              help="Sums instead of runs of pages; section = module!section(n).")  # fmt: skip
@click.option("--pages", is_flag=True, help="A line for each page.")
@click.option("--shares", is_flag=True, help="How many mappings each page has (root).")
@click.option("--top", type=click.IntRange(1), help="So many rows at most.")
@json_option
@click.option("-o", "--output", metavar="FILE", help="Write a trace file instead of printing.")
@click.option("-f", "--force", is_flag=True, help="Overwrite that file.")
@debug_privilege
def snapshot(
    pid: int,
    by: SnapshotBy | None,
    pages: bool,
    shares: bool,
    top: int | None,
    as_json: bool,
    output: str | None,
    force: bool,
) -> None:
    """Show the resident pages of a process: address, size, shared or private, protection, executable, owner.

    Adjacent pages with equal attributes stand in one line. S: another process has the page now (Windows: could have
    it); P: none. RO, RW; CW: the next write makes a copy; --: neither read nor written. E: executable.
    """
    if output is not None:
        _save(pid, output, shares=shares, force=force)
        return
    taken = working_set(pid, shares=shares)
    if as_json:
        print_json(_facts(taken, by))
        return
    out = Output.standard("stdout")
    first = _runs(taken, pages, top) if by is None else _owners(taken, by, top, unicode=out.unicode)
    tables = [first] if by == "kind" else [first, "", _owners(taken, "kind", None, unicode=out.unicode)]
    out.show(*tables, "", _totals(taken))


def _runs(taken: WorkingSet, pages: bool, top: int | None) -> TextTable:
    """One line per run of pages, or per page."""
    from wstrace_plugins.working_set.render import details

    shares = [Column("maps", "text")] if "shares" in taken.runs else []
    columns = [Column("address", spare=False), Column("KiB"), Column("S/P", "text"), Column("prot", "text"),
               Column("E", "text"), *shares, Column("", "text"), Column("owner", "name")]  # fmt: skip
    rows = details(taken, pages=pages)
    return TextTable(columns, rows[: rows_to_show(len(rows), top)], total=len(rows))


def _owners(taken: WorkingSet, by: SnapshotBy, top: int | None, *, unicode: bool) -> TextTable:
    """Resident, private, shared and mapped bytes of each owner; for mappings, with their strips of residency."""
    from wstrace_plugins.working_set.render import STYLES, strips

    owners = [owner for owner in _by(taken, by) if owner.resident or by == "mapping"]
    top = rows_to_show(len(owners), top)
    numbers = [Column("resident"), Column("private"), Column("shared"), Column("mapped")]
    sizes = [[size(o.resident), size(o.private), size(o.shared), size(o.mapped)] for o in owners]
    if by == "mapping":
        columns = [*numbers, Column("", "text"), Column("address", "text", spare=False), Column("mapping", "name")]
        strip = dict(zip(taken.mappings["start"].tolist(), strips(taken, unicode=unicode), strict=True))
        names = [owner.name.partition(" ") for owner in owners]
        marks = [[f"[{strip[int(range_.partition('-')[0], 16)]}]", range_, name] for range_, _, name in names]
        return TextTable(columns, [[*a, *b] for a, b in zip(sizes, marks, strict=True)][:top], total=len(owners))
    most = max((owner.resident for owner in owners), default=0)
    rows: list[list[Cell]] = [
        [*cells, Bar(owner.resident, most, STYLES.get(owner.kind, "cyan")), owner.name]
        for cells, owner in zip(sizes, owners, strict=True)
    ]
    return TextTable([*numbers, Column("", "bar"), Column(by, "name")], rows[:top], total=len(owners))


def _by(taken: WorkingSet, by: SnapshotBy) -> list[Owner]:
    if by == "section":
        from wstrace_plugins.working_set.sections import by_section

        return by_section(taken)
    return taken.by(by)


def _totals(taken: WorkingSet) -> str:
    """Total / Private / Shared / Page tables, and what is in no total."""
    parts = [("Total", taken.total_bytes), ("Private", taken.private_bytes), ("Shared", taken.shared_bytes),
             ("Page tables", taken.page_table_bytes), ("Swapped", taken.swapped_bytes or None),
             ("Large pages", taken.large_bytes or None)]  # fmt: skip
    words = "  ".join(f"{name} {size(n)}" for name, n in parts if n is not None)
    return f"process {taken.pid} {printable(taken.name)}: {words}"


def _facts(taken: WorkingSet, by: SnapshotBy | None) -> dict[str, Any]:
    """The snapshot as values for JSON; sizes in bytes."""
    from wstrace_plugins.working_set.render import protections

    facts: dict[str, Any] = {
        "pid": taken.pid, "name": well_formed(taken.name), "time_ns": taken.time_ns, "page_size": taken.page_size,
        "total": taken.total_bytes, "private": taken.private_bytes, "shared": taken.shared_bytes,
        "page_tables": taken.page_table_bytes, "swapped": taken.swapped_bytes, "large": taken.large_bytes,
    }  # fmt: skip
    if by is not None:
        facts["owners"] = [
            {"name": well_formed(o.name), "kind": o.kind, "resident": o.resident, "private": o.private,
             "shared": o.shared, "mapped": o.mapped} for o in _by(taken, by)
        ]  # fmt: skip
        return facts
    runs = taken.runs
    columns = (runs["start"].tolist(), runs["pages"].tolist(), runs["flags"].tolist(), protections(runs["flags"]),
               runs["row"].tolist())  # fmt: skip
    facts["runs"] = [
        {"address": start, "pages": n, "flags": flags, "protection": prot, "owner": well_formed(taken.owner(row))}
        for start, n, flags, prot, row in zip(*columns, strict=True)
    ]
    if "shares" in runs:
        for run, shares in zip(facts["runs"], runs["shares"].tolist(), strict=True):
            run["shares"] = None if shares == 255 else shares
    return facts


def _save(pid: int, output: str, *, shares: bool, force: bool) -> None:
    """One snapshot of that process alone, as a trace file."""
    from wstrace.options import Spec
    from wstrace.session import Session

    source = Spec("working_set", {"interval": 0.0, "shares": shares})
    exporter = Spec("msgpack", {"path": output, "force": force})
    session = Session(pid, sources=[source], exporters=[exporter], children=False, record=False)
    with session:
        while not session.wait(0.2) and not session.finished:
            pass
    click.echo(f"wstrace: saved {printable(output)}", err=True)
