"""What is resident at the counted moment: by kind of memory and who brought it; and of each of several processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import Row
from wstrace.analysis.inputs import NEVER
from wstrace.analysis.unshared import Unshared
from wstrace.schema import KIND_ANON, KIND_FILE, KIND_HEAP, KIND_SHARED, KINDS
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


def whole(of: Composition) -> dict[str, Any]:
    """The parts, which sum to the total of `report`; of each owner (name, bytes)."""
    parts, rows = [], of.rows("kind", "line")
    for title, kinds, columns in _PARTS:
        of_kind = [row for row in rows if row.labels[0].text in kinds]
        owners = _most([(row.labels[1].text, sum(_bytes(row, column) for column in columns)) for row in of_kind])
        if owners:
            parts.append({"name": title, "bytes": sum(n for _, n in owners), "owners": owners})
    return {"parts": parts}


def _bytes(row: Row, which: str) -> int:
    """The private or shared bytes, of which each physical page counts once."""
    return row["private"] if which == "private" else row["resident"] - row["private"]


def _most(found: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The owners with the most bytes; all others are one."""
    ordered = sorted((one for one in found if one[1]), key=lambda one: (-one[1], one[0]))
    rest = ordered[OWNERS:]
    first = [(name(text), n) for text, n in ordered[:OWNERS]]
    return first + [(others(len(rest)), sum(n for _, n in rest))] * bool(rest)


def workers(of: Composition, times: Times) -> dict[str, Any] | None:
    """The bars of processes, and who copied what was shared since a fork; None = there is one process only."""
    labels, (numbers, sums) = of.past.labels("process"), of.columns("process")
    if len(numbers) < 2:
        return None
    process = dict(zip(labels.of.tolist(), of.past.cube.key("process").tolist(), strict=True))  # of each label
    none = np.zeros(len(numbers))
    resident, private, faults = (sums.get(column, none) for column in ("resident", "private", "faults"))
    order = sorted(range(len(numbers)), key=lambda at: (-resident[at], -faults[at]))
    inputs, unshared = of.inputs, Unshared(of)
    copied = {fork["pid"]: fork["copied"] - fork["at_the_end"] for fork in unshared.forks()}
    lines = unshared.rows("line")
    first, last = (times.seconds(int(times.edges[at])) if times.n else 0.0 for at in (0, -1))
    moment = times.seconds(inputs.time_ns) if inputs.time_ns else last
    bars: list[dict[str, Any]] = []
    for at in order[:PROCESSES]:
        label = int(numbers[at])
        space = int(inputs.processes.searchsorted(process[label]))
        pid = int(inputs.pids[space])
        begun, ended = int(inputs.first_ns[space]), int(inputs.end_ns[space])
        bars.append({"name": name(labels.labels[label][0].text), "resident": round(resident[at]),
                     "private": round(private[at]), "copied": copied.get(pid, 0),
                     "begin": times.seconds(begun) if begun < NEVER else min(first, 0.0),
                     "end": times.seconds(ended) if ended < NEVER else max(last, moment)})  # fmt: skip
    notes = [f"{number(len(bars))} of {number(len(order))} processes, those with the most."] * (len(order) > PROCESSES)
    if unshared.at_least:
        notes.append("Copied is a lower bound: what was in memory before the trace is not known.")
    copies = _most([(row.label, row["copied"] - row["at_the_end"]) for row in lines])
    span = [min(bar["begin"] for bar in bars), max(bar["end"] for bar in bars)]
    return {"bars": bars, "span": span, "moment": moment, "notes": notes, "copies": copies,
            "answer": unshared.answer(lines)}  # fmt: skip
