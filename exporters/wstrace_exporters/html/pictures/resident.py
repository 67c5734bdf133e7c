"""What is resident at the counted moment: by kind of memory and who brought it; and of each of several processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wstrace.analysis.blame.rows import Blame, BlameRow
from wstrace.analysis.blame.unshared import Unshared
from wstrace.schema import KIND_ANON, KIND_FILE, KIND_HEAP, KIND_SHARED, KINDS, PROCESS, PROCESS_EXEC, PROCESS_FORK
from wstrace.text import number
from wstrace_exporters.html.document import name, others
from wstrace_exporters.html.pictures.timeline import Times

#: The owners that are shown one by one, and the processes that have a bar.
OWNERS, PROCESSES = 12, 40
_ANON, _FILE, _SHARED = ({KINDS[n] for n in kinds} for kinds in ((KIND_ANON, KIND_HEAP), (KIND_FILE,), (KIND_SHARED,)))
_OTHERS = set(KINDS) - _ANON - _FILE - _SHARED
#: The parts of the whole: the kinds of memory that each is of, and which of their bytes.
_PARTS = (
    ("private anonymous", {KINDS[KIND_ANON]}, ("private",)),
    ("heap", {KINDS[KIND_HEAP]}, ("private",)),
    ("private file", _FILE, ("private",)),
    ("shared file", _FILE, ("shared",)),
    ("shared since a fork", _ANON | _OTHERS, ("shared",)),
    ("shared memory", _SHARED, ("private", "shared")),
    ("stack and others", _OTHERS, ("private",)),
)


def whole(blame: Blame) -> dict[str, Any]:
    """The parts, which sum to the total of `report`; of each owner (name, bytes)."""
    parts, rows = [], blame.rows("kind", "line")
    for title, kinds, columns in _PARTS:
        of_kind = [row for row in rows if row.kind in kinds]
        owners = _most([(_owner(row), sum(getattr(row, column) for column in columns)) for row in of_kind])
        if owners:
            parts.append({"name": title, "bytes": sum(n for _, n in owners), "owners": owners})
    return {"parts": parts}


def _owner(row: BlameRow) -> str:
    return row.label.removeprefix(f"{row.kind}  ")


def _most(found: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The owners with the most bytes; all others are one."""
    ordered = sorted((one for one in found if one[1]), key=lambda one: (-one[1], one[0]))
    rest = ordered[OWNERS:]
    first = [(name(text), n) for text, n in ordered[:OWNERS]]
    return first + [(others(len(rest)), sum(n for _, n in rest))] * bool(rest)


def workers(blame: Blame, times: Times) -> dict[str, Any] | None:
    """The bars of processes, and who copied what was shared since a fork; None = there is one process only."""
    of, cells = blame.of, blame.cells("process")
    if len(cells.of) < 2:
        return None
    spaces = cells.of[:, 0].tolist()
    resident, private, faults = (cells.sums[column] for column in ("resident", "private", "faults"))
    order = sorted(range(len(spaces)), key=lambda at: (-resident[at], -faults[at]))
    begun, ended = _lives(blame)
    unshared = Unshared(blame)
    copied = {fork.pid: fork.n_bytes for fork in unshared.forks()}
    first, last = (times.seconds(int(times.edges[at])) if times.n else 0.0 for at in (0, -1))
    moment = times.seconds(of.inputs.time_ns) if of.inputs.time_ns else last
    bars: list[dict[str, Any]] = []
    for at in order[:PROCESSES]:
        space, pid = spaces[at], int(of.inputs.pids[spaces[at]])
        bars.append({"name": name(cells.labels[0][space].whole), "resident": round(resident[at]),
                     "private": round(private[at]), "copied": copied.get(pid, 0),
                     "begin": times.seconds(begun[pid]) if pid in begun else min(first, 0.0),
                     "end": times.seconds(ended[space]) if space in ended else max(last, moment)})  # fmt: skip
    notes = [f"{number(len(bars))} of {number(len(order))} processes, those with the most."] * (len(order) > PROCESSES)
    if unshared.at_least:
        notes.append("Copied is a lower bound: what was in memory before the trace is not known.")
    label, rows = unshared.by("line")
    pages = np.bincount(label, unshared.pages, len(rows)).astype(np.int64) * of.page_size
    copies = _most([(row.label, n) for row, n in zip(rows, pages.tolist(), strict=True)])
    span = [min(bar["begin"] for bar in bars), max(bar["end"] for bar in bars)]
    return {"bars": bars, "span": span, "moment": moment, "notes": notes, "copies": copies}


def _lives(blame: Blame) -> tuple[dict[int, int], dict[int, int]]:
    """The time at which each process began, by pid, and ended, by space, as far as the trace has it."""
    begun: dict[int, int] = {}
    for batch in blame.of.trace.batches(PROCESS.name):
        own = (batch["tid"] == batch["pid"]) & np.isin(batch["event"], (PROCESS_FORK, PROCESS_EXEC))
        for pid, time in zip(batch["pid"][own].tolist(), batch["time_ns"][own].tolist(), strict=True):
            begun.setdefault(pid, time)
    ends = blame.of.inputs.ends
    return begun, dict(zip(ends.space.tolist(), ends.time.tolist(), strict=True))
