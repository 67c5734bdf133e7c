"""`wstrace delta PID`: what a process brings in between two moments, and which instructions did it."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.symbols import label_of
from wstrace.cli.common import Duration, debug_privilege, json_option, print_json
from wstrace.errors import TargetExited, Unavailable, UsageError
from wstrace.places import Place
from wstrace.schema import FAULT_MAJOR, FAULT_PC_KERNEL
from wstrace.session import Session
from wstrace.terminal.output import Output
from wstrace.terminal.table import Column, TextTable
from wstrace.text import plural, printable, size, well_formed
from wstrace_plugins.working_set.delta import Delta
from wstrace_plugins.working_set.sections import KERNEL, places

Line = tuple[int, int, int, Place | str, Place | str]
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
    lines = _lines(faults, d)
    facts = _facts(d, session, faults, ended)
    if refused:
        facts["not_traced"] = refused
    if as_json:
        rows = [{"va": va, "pc": pc, "count": n, "at": str(at), "via": str(via)} for va, pc, n, at, via in lines[:top]]
        print_json({**facts, "faults": rows, "new": _changes(d)})
        return
    shown = _ROWS if top is None else top
    _print(d, facts, _address_table(lines, top) if addresses else _function_table(lines, shown), shown)


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
    kernel = (faults["flags"] & FAULT_PC_KERNEL) != 0
    by = np.where(kernel, np.uint64(KERNEL), faults["pc"])  # which one of the kernel's says nothing of the process
    pairs = np.stack([faults["va"] // np.uint64(d.after.page_size), by])
    _, first, counts = np.unique(pairs, axis=1, return_index=True, return_counts=True)
    va = faults["va"][first]
    addresses, inverse = np.unique(np.concatenate([va, by[first]]), return_inverse=True)
    found = places(addresses, [d.after, d.before])
    at, via = ([found[i] for i in half.tolist()] for half in np.split(inverse, 2))
    return list(zip(va.tolist(), faults["pc"][first].tolist(), counts.tolist(), at, via, strict=True))


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


def _function_table(lines: list[Line], top: int) -> TextTable:
    """The faults by the file of their page and the function of their instruction, the most first."""
    sums: Counter[tuple[str, str]] = Counter()
    for _, _, count, at, via in lines:
        sums[at if isinstance(at, str) else at.module, label_of(via, "function")] += count
    rows = [[f"{n:,}", f"{file}  by  {function}"] for (file, function), n in sums.most_common()]
    return TextTable.of([Column("faults"), Column("file of the page  by  function", "name")], rows, top)


def _address_table(lines: list[Line], top: int | None) -> TextTable:
    """One line for each page and instruction."""
    columns = [Column("VA"), Column("PC"), Column("", "text"), Column("page via instruction", "name")]
    rows = [[f"{va:08x}", f"{pc:08x}", f"x{n}" if n > 1 else "", f"{at} via {via}"] for va, pc, n, at, via in lines]
    return TextTable.of(columns, rows, top)


def _print(d: Delta, facts: dict[str, Any], faults: TextTable, top: int) -> None:
    """Shows the tables and one line with the sums."""
    parts: list[str | TextTable] = []
    changes = [[size(c["new"]), size(c["gone"]), c["kind"], c["name"]] for c in _changes(d)]
    if changes:
        columns = [Column("new"), Column("gone"), Column("kind", "text"), Column("module", "name")]
        parts += [TextTable.of(columns, changes, top), ""]
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
