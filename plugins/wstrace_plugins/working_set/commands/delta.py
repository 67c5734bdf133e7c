"""`wstrace delta PID`: what a process brings in between two moments, and which instructions did it."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from contextlib import suppress
from operator import itemgetter
from typing import Any

import click
import numpy as np

from wstrace.analysis.symbols import label_of, symbolizer_of
from wstrace.cli.common import Duration, debug_privilege, json_option, print_json
from wstrace.errors import TargetExited, Unavailable, UsageError
from wstrace.interfaces import Place
from wstrace.schema import FAULT_MAJOR, FAULT_PC_KERNEL, MAPPING, PAGE_FAULT
from wstrace.session import Session
from wstrace.terminal import Column, Output, TextTable
from wstrace.text import plural, printable, size, well_formed
from wstrace.trace import Trace
from wstrace_plugins.working_set.delta import Delta

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
    lines = [] if session is None else _lines(session.trace, d.after.page_size)
    changes = [] if d.after is d.before else d.by()  # it has ended before the second snapshot
    facts: dict[str, Any] = {
        "pid": pid, "name": well_formed(d.before.name), "seconds": d.seconds, "ended": ended,
        "before": d.before.total_bytes, "after": d.after.total_bytes, "new_bytes": d.new_bytes,
        "gone_bytes": d.gone_bytes,
    }  # fmt: skip
    if session is None:
        facts["not_traced"] = refused
    else:
        faults = session.faults
        major = int(((faults["flags"] & FAULT_MAJOR) != 0).sum()) if len(faults) else 0
        losses = {stage: n for stage, _, n in session.ledger.losses()}
        facts |= {"minor": len(faults) - major, "major": major, "lost": losses}
    if as_json:
        rows = [{"va": va, "pc": pc, "count": n, "at": str(at), "via": str(via)} for va, pc, n, at, via in lines[:top]]
        new = [{"name": change.name, "kind": change.kind, "new": change.new, "gone": change.gone} for change in changes]
        print_json({**facts, "faults": rows, "new": new})
        return
    shown = _ROWS if top is None else top
    sizes = [[size(change.new), size(change.gone), change.kind, change.name] for change in changes]
    heads = [Column("new"), Column("gone"), Column("kind", "text"), Column("module", "name")]
    tables = [
        TextTable.of(heads, sizes, shown),
        _address_table(lines, top) if addresses else _function_table(lines, shown),
    ]
    parts = [part for table in tables if table.rows for part in ("", table)]
    Output.standard("stdout").show(_sentence(d, facts), *parts)
    if session is None:
        click.echo(f"wstrace: its page faults are not shown: {printable(refused)}", err=True)


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


def _lines(trace: Trace, page_size: int) -> list[Line]:
    """(va, pc, count, place of va, place of pc), by address: one line for each page and instruction."""
    symbols = symbolizer_of(trace.info, trace.batches(MAPPING.name))
    first: dict[tuple[int, int], tuple[int, int, Place | str, Place | str]] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for batch in trace.batches(PAGE_FAULT.name):
        # which instruction of the kernel's it was says nothing of the process
        by = np.where(batch["flags"] & FAULT_PC_KERNEL != 0, 0, batch["pc"])
        keys = list(zip((batch["va"] // np.uint64(page_size)).tolist(), by.tolist(), strict=True))
        counts.update(keys)
        at, via = symbols.of(batch, "va", "mapping", "file"), symbols.of(batch, "pc", "pc_mapping", "pc_file")
        rows = zip(batch["va"].tolist(), batch["pc"].tolist(), at, via, strict=True)
        for key, row in zip(keys, rows, strict=True):
            first.setdefault(key, row)
    return [(*row[:2], counts[key], *row[2:]) for key, row in sorted(first.items(), key=itemgetter(0))]


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


def _sentence(d: Delta, facts: dict[str, Any]) -> str:
    """The first line: the sums."""
    words = [f"process {facts['pid']} {facts['name']}: {d.seconds:.1f} s"]
    if "minor" in facts:
        words.append(f"{plural(facts['minor'] + facts['major'], 'fault')}, {facts['major']:,} from disk")
    words += [f"lost: {n:,} {stage.replace('_', ' ')}" for stage, n in facts.get("lost", {}).items()]
    if d.after is not d.before or not facts["ended"]:
        words.append(f"{size(d.new_bytes)} new, {size(d.gone_bytes)} gone, {size(d.after.total_bytes)} resident now")
    if facts["ended"]:
        words.append("it has ended")
    return " · ".join(words)
