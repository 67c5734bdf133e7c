"""`wstrace snapshot PID`: what is in a process's memory, and whose it is."""

from __future__ import annotations

import json
from typing import Any

import click

from wstrace.cli.privilege import debug_privilege
from wstrace.text import printable, size, well_formed
from wstrace_working_set.working_set import By, WorkingSet, working_set


@click.command()
@click.argument("pid", type=int)
@click.option("--by", type=click.Choice(["module", "mapping", "kind"]), help="Sums instead of runs of pages.")
@click.option("--pages", is_flag=True, help="A line for each page.")
@click.option("--shares", is_flag=True, help="How many mappings each page has (root).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("-o", "--output", metavar="FILE", help="Write a trace file instead of printing.")
@click.option("-f", "--force", is_flag=True, help="Overwrite that file.")
@debug_privilege
def snapshot(
    pid: int, by: By | None, pages: bool, shares: bool, as_json: bool, output: str | None, force: bool
) -> None:
    """Show the resident pages of a process: address, size, shared or private, protection, executable, owner.

    Adjacent pages with equal attributes stand in one line. S: another process has the page now; P: none has. RO, RW;
    CW: the next write makes a copy. E: executable.
    """
    if output is not None:
        _save(pid, output, shares=shares, force=force)
        return
    taken = working_set(pid, shares=shares)
    if as_json:
        click.echo(json.dumps(_facts(taken, by), indent=1))
        return
    from wstrace_working_set import render

    if by is None:
        heads = ["address", "KiB", "S/P", "prot", "E", *(["maps"] if shares else []), "", "owner"]
        render.show(heads, render.details(taken, pages=pages), left=6 if shares else 5)
    else:
        _show_owners(taken, by)
    if by != "kind":
        render.write("")
        _show_owners(taken, "kind")
    render.write(f"\n{_totals(taken)}")


def _show_owners(taken: WorkingSet, by: By) -> None:
    from wstrace_working_set import render

    owners = [owner for owner in taken.by(by) if owner.resident or by == "mapping"]
    kinds, names = [owner.kind for owner in owners], [printable(owner.name) for owner in owners]
    if by == "mapping":
        starts = [int(owner.name.partition("-")[0], 16) for owner in owners]
        strip = dict(zip(taken.mappings["start"].tolist(), render.strips(taken), strict=True))
        marks = [f"[{strip[start]}]" for start in starts]
    else:
        most = max((owner.resident for owner in owners), default=0)
        marks = [render.bar(owner.resident, most) for owner in owners]
    rows = [
        [size(owner.resident), size(owner.private), size(owner.shared), size(owner.mapped), mark, name]
        for owner, mark, name in zip(owners, marks, names, strict=True)
    ]
    render.show(["resident", "private", "shared", "mapped", "", by], rows, left=2, kinds=kinds)


def _totals(taken: WorkingSet) -> str:
    """Total / Private / Shared / Page tables, and what no total counts."""
    parts = [("Total", taken.total_bytes), ("Private", taken.private_bytes), ("Shared", taken.shared_bytes),
             ("Page tables", taken.page_table_bytes), ("Swapped", taken.swapped_bytes or None),
             ("Large pages", taken.totals.large or None)]  # fmt: skip
    words = "  ".join(f"{name} {size(n)}" for name, n in parts if n is not None)
    return f"process {taken.pid} {printable(taken.name)}: {words}"


def _facts(taken: WorkingSet, by: By | None) -> dict[str, Any]:
    """The snapshot as JSON takes it; sizes in bytes."""
    from wstrace_working_set.render import protections

    facts: dict[str, Any] = {
        "pid": taken.pid, "name": well_formed(taken.name), "time_ns": taken.time_ns, "page_size": taken.page_size,
        "total": taken.total_bytes, "private": taken.private_bytes, "shared": taken.shared_bytes,
        "page_tables": taken.page_table_bytes, "swapped": taken.swapped_bytes,
    }  # fmt: skip
    if by is not None:
        facts["owners"] = [
            {"name": well_formed(o.name), "kind": o.kind, "resident": o.resident, "private": o.private,
             "shared": o.shared, "mapped": o.mapped} for o in taken.by(by)
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
