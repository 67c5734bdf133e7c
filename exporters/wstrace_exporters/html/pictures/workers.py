"""The workers: a lane for each process of several, what it shares at each look, and what was copied since a fork."""

from __future__ import annotations

from typing import Any

import numpy as np

from wstrace.analysis.blame.rows import Blame
from wstrace.analysis.blame.timeline import Arrivals, Timeline
from wstrace.analysis.blame.unshared import Unshared
from wstrace.schema import PROCESS, PROCESS_EXEC, PROCESS_FORK
from wstrace.text import number
from wstrace_exporters.html.encode import name, others, varints
from wstrace_exporters.html.pictures.timeline import Times

#: The processes that have a lane, the looks at each, and the owners of copies.
LANES, LOOKS, OWNERS = 40, 30, 12


def workers(arrived: Timeline, times: Times) -> dict[str, Any] | None:
    """The lanes; None = there is one process only.

    Of each lane by time, as varints: the distance to the time before, and what arrived then and is resident, and what
    of that is private, in halves of pages.
    """
    blame = arrived.blame
    of = blame.of
    cells = blame.cells("process")
    if len(cells.of) < 2:
        return None
    figures = {int(space): at for at, space in enumerate(cells.of[:, 0].tolist())}
    resident, private, faults = (cells.sums[column] for column in ("resident", "private", "faults"))
    came, unit = arrived.arrivals("process") if arrived.n else None, of.page_size / 2
    order = sorted(figures, key=lambda space: (-resident[figures[space]], -faults[figures[space]]))
    begun, ended = _lives(blame)
    unshared = Unshared(blame)
    copied = {fork.pid: fork.n_bytes for fork in unshared.forks()}
    first = times.seconds(int(times.edges[0])) if times.n else 0.0
    last = times.seconds(int(times.edges[-1])) if times.n else 0.0
    at = times.seconds(of.inputs.time_ns) if of.inputs.time_ns else last
    lanes: list[dict[str, Any]] = []
    for space in order[:LANES]:
        mine, pid = figures[space], int(of.inputs.pids[space])
        looks = [[at, round(resident[mine]), round(private[mine])]] if resident[mine] else []
        lanes.append({"name": name(cells.labels[0][space].whole), "looks": looks, "copied": copied.get(pid, 0),
                      "times": "" if came is None else _times(came, int(cells.number[mine]), unit),
                      "begin": times.seconds(begun[pid]) if pid in begun else min(first, 0.0),
                      "end": times.seconds(ended[space]) if space in ended else max(last, at)})  # fmt: skip
    notes = [f"{number(len(lanes))} of {number(len(order))} processes, those with the most."] * (len(order) > LANES)
    if unshared.at_least:
        notes.append("Copied is a lower bound: what was in memory before the trace is not known.")
    begin = min(lane["begin"] for lane in lanes)
    return {"lanes": lanes, "span": [begin, max(lane["end"] for lane in lanes)], "notes": notes,
            "unit": unit, "page": of.page_size, **_copies(unshared, times)}  # fmt: skip


def _copies(unshared: Unshared, times: Times) -> dict[str, Any]:
    """Who copied: of each owner (name, bytes, and the pages by time as varints), and how many the last one stands for.

    These are of each time at which any was copied its distance to the one before, and the pages.
    """
    of = unshared.of
    label, rows = unshared.by("line")
    pages = np.bincount(label, unshared.pages, len(rows)).astype(np.int64)
    order = sorted(np.flatnonzero(pages).tolist(), key=lambda at: (-pages[at], rows[at].whole))
    column = times.at(of.history.faults.time[unshared.copies]).clip(0)

    def told(text: str, owners: list[int]) -> list[Any]:
        mine = np.isin(label, owners)
        some, which = np.unique(column[mine], return_inverse=True)
        copied = np.bincount(which, unshared.pages[mine], len(some)).astype(np.int64)
        over = varints(np.column_stack((np.diff(some, prepend=0), copied)).ravel())
        return [text, int(copied.sum()) * of.page_size, over]

    rest = order[OWNERS:]
    found = [told(name(rows[at].label), [at]) for at in order[:OWNERS]]
    return {"copies": found + [told(others(len(rest)), rest)] * bool(rest), "rest": len(rest)}


def _times(came: Arrivals, label: int, unit: float) -> str:
    mine = np.flatnonzero((came.label == label) & (came.resident > 0))
    held, own = (np.round(column[mine] / unit).astype(np.int64) for column in (came.resident, came.private))
    return varints(np.column_stack((np.diff(came.time[mine], prepend=0), held, own)).ravel())


def _lives(blame: Blame) -> tuple[dict[int, int], dict[int, int]]:
    """The time at which each process began, by pid, and ended, by space, as far as the trace has it."""
    begun: dict[int, int] = {}
    for batch in blame.of.trace.batches(PROCESS.name):
        own = (batch["tid"] == batch["pid"]) & np.isin(batch["event"], (PROCESS_FORK, PROCESS_EXEC))
        for pid, time in zip(batch["pid"][own].tolist(), batch["time_ns"][own].tolist(), strict=True):
            begun.setdefault(pid, time)
    ends = blame.of.inputs.ends
    return begun, dict(zip(ends.space.tolist(), ends.time.tolist(), strict=True))
