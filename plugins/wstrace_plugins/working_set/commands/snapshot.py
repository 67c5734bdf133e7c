"""`wstrace snapshot PID`: what is in a process's memory, and what it belongs to."""

from __future__ import annotations

from typing import Any, Literal

import click
import numpy as np
from numpy.typing import NDArray

from wstrace import schema
from wstrace.cli.common import debug_privilege, json_option, print_json
from wstrace.errors import UsageError
from wstrace.terminal import Bar, Cell, Column, Output, TextTable
from wstrace.text import printable, size, well_formed
from wstrace_plugins.working_set.working_set import By, WorkingSet, working_set

SnapshotBy = By | Literal["section"]
#: what is said of pages beside their protection
_MORE = (
    (schema.PAGE_HUGE, "huge"), (schema.PAGE_ZERO, "zero"), (schema.PAGE_SWAPPED, "swapped"),
    (schema.PAGE_LOCKED, "locked"), (schema.PAGE_GUARD, "guard"), (schema.PAGE_LARGE, "large"),
)  # fmt: skip


@click.command()
@click.argument("pid", type=int)
@click.option("--by", type=click.Choice(["module", "section", "mapping", "kind"]),
              help="Sums instead of runs of pages; section = module!section(n).")  # fmt: skip
@click.option("--sections", is_flag=True, help="Owners are sections, module!section(n), at which runs are cut.")
@click.option("--shares", is_flag=True, help="How many mappings each page has (root).")
@click.option("--top", type=click.IntRange(1), help="At most this many rows.")
@json_option
@click.option("-o", "--output", metavar="FILE", help="Write a trace file instead of printing.")
@click.option("-f", "--force", is_flag=True, help="Overwrite that file.")
@debug_privilege
def snapshot(
    pid: int, by: SnapshotBy | None, sections: bool, shares: bool, top: int | None, as_json: bool, output: str | None,
    force: bool,
) -> None:  # fmt: skip
    """Show the resident pages of a process: address, size, shared or private, protection, executable, owner.

    Adjacent pages with equal attributes stand in one line. S: another process has the page now (Windows: could have
    it); P: none. RO, RW; CW: the next write makes a copy; --: neither read nor written. E: executable.
    """
    if output is not None:
        if by or sections or top or as_json:
            raise UsageError("-o FILE has the whole snapshot, and no table", "leave the other options out")
        _save(pid, output, shares=shares, force=force)
        return
    taken = working_set(pid, shares=shares)
    if sections or by == "section":
        from wstrace_plugins.working_set.sections import sectioned

        taken = sectioned(taken)
    if as_json:
        print_json(_facts(taken, by))
        return
    out = Output.standard("stdout")
    first = _runs(taken, top) if by is None else _owners(taken, by, top)
    tables = [first] if by == "kind" else [first, "", _owners(taken, "kind", None)]
    out.show(*tables, "", _totals(taken))


def _rows(taken: WorkingSet) -> list[dict[str, Any]]:
    """The runs of pages as values for JSON."""
    runs = taken.runs
    columns = [runs["start"].tolist(), runs["pages"].tolist(), runs["flags"].tolist(), protections(runs["flags"]),
               [well_formed(taken.owner(row)) for row in runs["row"].tolist()]]  # fmt: skip
    names = ["address", "pages", "flags", "protection", "owner"]
    if "shares" in runs:
        names.append("shares")
        columns.append([None if count == 255 else count for count in runs["shares"].tolist()])
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _runs(taken: WorkingSet, top: int | None) -> TextTable:
    """One line per run of pages, by address."""
    rows = []
    for one in _rows(taken):
        flags, counts = one["flags"], [str(one.get("shares") or "")] * ("shares" in one)
        words = " ".join(word for bit, word in _MORE if flags & bit)
        rows.append([f"{one['address']:x}", f"{one['pages'] * taken.page_size // 1024:,}",
                     "S" if flags & schema.PAGE_SHARED else "P", one["protection"],
                     "E" if flags & schema.PAGE_EXECUTE else "", *counts, words, one["owner"]])  # fmt: skip
    columns = [Column("address", spare=False), Column("KiB"), Column("S/P", "text"), Column("prot", "text"),
               Column("E", "text"), *[Column("maps", "text")] * ("shares" in taken.runs), Column("", "text"),
               Column("owner", "name")]  # fmt: skip
    return TextTable.of(columns, rows, top)


def _owners(taken: WorkingSet, by: SnapshotBy, top: int | None) -> TextTable:
    """Resident, private, shared and mapped bytes of each owner."""
    owners = [owner for owner in taken.by(_of(by)) if owner.resident or by == "mapping"]
    numbers = [Column("resident"), Column("private"), Column("shared"), Column("mapped")]
    most = max((owner.resident for owner in owners), default=0)
    rows: list[list[Cell]] = [
        [*map(size, (one.resident, one.private, one.shared, one.mapped)),
         Bar(one.resident, most), one.name]
        for one in owners
    ]  # fmt: skip
    return TextTable.of([*numbers, Column("", "bar"), Column(by, "name")], rows, top)


def _of(by: SnapshotBy) -> By:
    """In a snapshot by section, the modules are the sections."""
    return "module" if by == "section" else by


def _totals(taken: WorkingSet) -> str:
    """Total / Private / Shared / Page tables, and what is in no total."""
    parts = [("Total", taken.total_bytes), ("Private", taken.private_bytes), ("Shared", taken.shared_bytes),
             ("Page tables", taken.page_table_bytes), ("Swapped", taken.swapped_bytes or None),
             ("Large pages", taken.large_bytes or None)]  # fmt: skip
    words = "  ".join(f"{name} {size(n)}" for name, n in parts if n is not None)
    return f"process {taken.pid} {printable(taken.name)}: {words}"


def _facts(taken: WorkingSet, by: SnapshotBy | None) -> dict[str, Any]:
    """The snapshot as values for JSON; sizes in bytes."""
    facts: dict[str, Any] = {
        "pid": taken.pid, "name": well_formed(taken.name), "time_ns": taken.time_ns, "page_size": taken.page_size,
        "total": taken.total_bytes, "private": taken.private_bytes, "shared": taken.shared_bytes,
        "page_tables": taken.page_table_bytes, "swapped": taken.swapped_bytes, "large": taken.large_bytes,
    }  # fmt: skip
    if by is not None:
        facts["owners"] = [
            {"name": well_formed(o.name), "kind": o.kind, "resident": o.resident, "private": o.private,
             "shared": o.shared, "mapped": o.mapped} for o in taken.by(_of(by))
        ]  # fmt: skip
        return facts
    facts["runs"] = _rows(taken)
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


def protections(flags: NDArray[Any]) -> list[str]:
    """RO, RW or CW (copy on write) for each run; -- for pages that may be neither read nor written."""
    cow, write, read = (
        (flags & schema.PAGE_COPY_ON_WRITE) != 0,
        (flags & schema.PAGE_WRITE) != 0,
        (flags & schema.PAGE_READ) != 0,
    )
    names: list[str] = np.select([cow, write, read], ["CW", "RW", "RO"], "--").tolist()
    return names
