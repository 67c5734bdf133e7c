"""`wstrace delta PID`: what a process brings in between two moments, and which instructions did it."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.symbols import label_of
from wstrace.cli.common import Duration, json_option, print_json
from wstrace.cli.privilege import debug_privilege
from wstrace.errors import TargetExited, Unavailable, UsageError
from wstrace.schema import FAULT_MAJOR, FAULT_PC_KERNEL
from wstrace.session import Session
from wstrace.terminal.output import Output
from wstrace.terminal.table import Column, TextTable, rows_to_show
from wstrace.text import plural, printable, size, well_formed
from wstrace_plugins.working_set.delta import Delta
from wstrace_plugins.working_set.places import places

Line = tuple[int, int, int, str, str]
_ROWS = 20


@click.command()
@click.argument("pid", type=int)
@click.option("--duration", type=Duration(), metavar="TIME", help="End after this time, as 10s or 2m; else with Enter.")
@click.option("--addresses", is_flag=True, help="A line for each page and instruction, not a table by function.")
@click.option("--top", type=click.IntRange(0), help="Rows of a table (20); lines of --addresses and of JSON (all).")
@json_option
@debug_privilege
def delta(pid: int, duration: float | None, addresses: bool, top: int | None, as_json: bool) -> None:
    """Show what a process brings into memory from now until Enter or --duration.

    The page faults are counted by the function of the instruction. With --addresses, VA is the address that was
    touched, PC the instruction that did it, each as module!section(n); a page that was brought in more than once by one
    instruction is one line with its count.
    """
    if pid == os.getpid():
        raise UsageError("this is the process of wstrace itself")
    session, refused = _trace(pid)
    try:
        d = Delta(pid, written=False)
        ended = _wait(pid, duration, session)
        with suppress(TargetExited):
            d.finish()
    finally:
        if session is not None:
            session.stop()
    faults = np.empty(0) if session is None else _between(session.faults, d)
    lines = _lines(faults, d) if addresses or as_json else []
    facts = _facts(d, session, faults, ended)
    if refused:
        facts["not_traced"] = refused
    if as_json:
        lines = lines[:top]
        rows = [dict(zip(("va", "pc", "count", "at", "via"), line, strict=True)) for line in lines]
        print_json({**facts, "faults": rows, "new": _changes(d)})
        return
    shown = _ROWS if top is None else top
    _print(d, facts, _address_table(lines, top) if addresses else _function_table(faults, d, shown), shown)


def _trace(pid: int) -> tuple[Session | None, str]:
    """A running session on its page faults; without the right, why not."""
    session = Session(pid, sources=["page_faults"], children=False)
    try:
        session.start()
    except TargetExited:
        raise
    except Unavailable as refused:
        return None, str(refused)
    return session, ""


def _wait(pid: int, seconds: float | None, session: Session | None) -> bool:
    """Until Enter, the time's end, Ctrl-C or the process's end; True when it ended."""
    if seconds is None:
        click.echo(f"wstrace: watching process {pid}; Enter ends it", err=True)
        with suppress(KeyboardInterrupt):
            sys.stdin.readline()
        return False
    with suppress(KeyboardInterrupt):
        if session is not None:
            return session.wait(seconds)
        time.sleep(seconds)
    return False


def _between(faults: NDArray[Any], d: Delta) -> NDArray[Any]:
    """The faults between the two snapshots; where records carry no time, all of them."""
    if not len(faults) or "time_ns" not in (faults.dtype.names or ()):
        return faults
    last = np.inf if d.after is d.before else d.after.time_ns
    return faults[(faults["time_ns"] >= d.before.time_ns) & (faults["time_ns"] <= last)]


def _lines(faults: NDArray[Any], d: Delta) -> list[Line]:
    """(va, pc, count, place of va, place of pc), by address: one line for each page and instruction."""
    if not len(faults):
        return []
    page = faults["va"] // np.uint64(d.after.page_size)
    kernel = (faults["flags"] & FAULT_PC_KERNEL) != 0
    by = np.where(kernel, 0, faults["pc"])  # which instruction of the kernel it was says nothing of the process
    order = np.lexsort((by, page))
    change = np.r_[True, (page[order][1:] != page[order][:-1]) | (by[order][1:] != by[order][:-1])]
    first, counts = order[change], np.diff(np.flatnonzero(change), append=len(order))
    va, pc = faults["va"][first], faults["pc"][first]
    addresses, inverse = np.unique(np.concatenate([va, pc]), return_inverse=True)
    names_ = [str(place) for place in places(addresses, [d.after, d.before])]
    at, via = inverse[: len(va)].tolist(), inverse[len(va) :].tolist()
    return [
        (va_, pc_, n, names_[a], "[kernel]" if in_kernel else names_[v])
        for va_, pc_, n, a, v, in_kernel in zip(
            va.tolist(), pc.tolist(), counts.tolist(), at, via, kernel[first].tolist(), strict=True
        )
    ]


def _facts(d: Delta, session: Session | None, faults: NDArray[Any], ended: bool) -> dict[str, Any]:
    """Its sums; sizes in bytes."""
    facts: dict[str, Any] = {
        "pid": d.pid, "name": well_formed(d.before.name), "seconds": d.seconds, "ended": ended,
        "before": d.before.total_bytes, "after": d.after.total_bytes, "new_bytes": d.new_bytes,
        "gone_bytes": d.gone_bytes,
    }  # fmt: skip
    if session is None:
        return facts
    major = int(((faults["flags"] & FAULT_MAJOR) != 0).sum()) if len(faults) else 0
    losses = {stage: n for stage, _, n in session.ledger.losses()}
    return {**facts, "minor": len(faults) - major, "major": major, "lost": losses}


def _changes(d: Delta) -> list[dict[str, Any]]:
    """Who has the new pages, as plain values; nothing when the process ended before the second snapshot."""
    if d.after is d.before:
        return []
    return [{"name": change.name, "kind": change.kind, "new": change.new, "gone": change.gone} for change in d.by()]


def _function_table(faults: NDArray[Any], d: Delta, top: int) -> TextTable:
    """The faults by the file of their page and the function of their instruction, the most first."""
    columns = [Column("faults"), Column("file of the page  by  function", "name")]
    if not len(faults):
        return TextTable(columns)
    addresses, inverse = np.unique(np.concatenate([faults["va"], faults["pc"]]), return_inverse=True)
    found = places(addresses, [d.after, d.before])
    names: dict[str, int] = {}
    kernel = names.setdefault("[kernel]", 0)
    files = np.array([names.setdefault(p if isinstance(p, str) else p.module, len(names)) for p in found])
    functions = np.array([names.setdefault(label_of(p, "function"), len(names)) for p in found])
    by = np.where((faults["flags"] & FAULT_PC_KERNEL) != 0, kernel, functions[inverse[len(faults) :]])
    pairs, counts = np.unique(np.stack([files[inverse[: len(faults)]], by]), axis=1, return_counts=True)
    order = np.argsort(-counts, kind="stable")[: rows_to_show(len(counts), top)]
    words = list(names)
    shown = [[f"{counts[row]:,}", f"{words[pairs[0, row]]}  by  {words[pairs[1, row]]}"] for row in order.tolist()]
    return TextTable(columns, shown, total=len(counts))


def _address_table(lines: list[Line], top: int | None) -> TextTable:
    columns = [Column("VA"), Column("PC"), Column("", "text"), Column("page via instruction", "name")]
    shown = [[f"{va:08x}", f"{pc:08x}", f"x{n}" if n > 1 else "", f"{at} via {via}"] for va, pc, n, at, via in lines]
    return TextTable(columns, list(shown[: rows_to_show(len(lines), top)]), total=len(lines))


def _print(d: Delta, facts: dict[str, Any], faults: TextTable, top: int) -> None:
    parts: list[str | TextTable] = []
    changes = [[size(c["new"]), size(c["gone"]), c["kind"], c["name"]] for c in _changes(d)]
    if changes:
        columns = [Column("new"), Column("gone"), Column("kind", "text"), Column("module", "name")]
        parts += [TextTable(columns, changes[: rows_to_show(len(changes), top)], total=len(changes)), ""]
    if faults.rows:
        parts += [faults, ""]
    words = [f"process {facts['pid']} {facts['name']}: {d.seconds:.1f} s"]
    if "minor" in facts:
        words.append(f"{plural(facts['minor'] + facts['major'], 'fault')}, {facts['major']:,} from disk")
    words += [f"lost: {n:,} {stage.replace('_', ' ')}" for stage, n in facts.get("lost", {}).items()]
    if changes or not facts["ended"]:
        words.append(f"{size(d.new_bytes)} new, {size(d.gone_bytes)} gone, {size(d.after.total_bytes)} resident now")
    if facts["ended"]:
        words.append("it has ended")
    Output.standard("stdout").show(*parts, " · ".join(words))
    if "not_traced" in facts:
        click.echo(f"wstrace: its page faults are not shown: {printable(facts['not_traced'])}", err=True)
