"""A refresh: the figures of a running trace at a moment, as plain values, and what must be kept for the next one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from wstrace import schema
from wstrace.analysis.composition import Composition
from wstrace.analysis.dimensions import NOT_KNOWN, Label, Row
from wstrace.analysis.moments import Snapshots
from wstrace.analysis.report import completeness
from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.trace import Trace

#: Losses that tell where what is resident was before, in whose memory or at which address.
_ELSEWHERE = (
    schema.LOSS_FORKED,
    schema.LOSS_PERHAPS_FORKED,
    schema.LOSS_SHARES,
    schema.LOSS_EXECUTED,
    schema.LOSS_MOVED,
)
#: Faults come later than this, in ns, only where there is no room on the CPUs: the screen has them read twice a second.
LATE_NS = 1_000_000_000
#: What a table of owners can be by; the first one is shown first.
OWNERS = ("line", "function", "package", "file", "kind")


@dataclass(slots=True)
class Refresh:
    """What is known at a moment. Sizes are in bytes, times in ns.

    time_ns: when it was taken; span: seconds since the refresh before. by: what the owners are.
    owners, workers: rows by that and by process; their faults and major ones are those that were recorded
    since the refresh before, and recent is how many these are. until_ns: the time of the last fault that it knows.
    resident: of all processes. faults, major: since the start.
    lost: records that the trace lacks. counted: whether faults are counted only; level: its name
    and why it is not a better one, "" = full. completeness: a
    sentence. ended: whether all targets have.
    """

    time_ns: int = 0
    span: float = 0.0
    until_ns: int = 0
    by: str = OWNERS[0]
    owners: list[Row] = field(default_factory=list)
    workers: list[Row] = field(default_factory=list)
    resident: int = 0
    recent: int = 0
    faults: int = 0
    major: int = 0
    lost: int = 0
    counted: bool = False
    level: str = ""
    completeness: str = ""
    ended: bool = False


def refreshed(trace: Trace, by: str, before: Refresh, until_ns: int) -> tuple[Refresh, Callable[[Batch], Batch | None]]:
    """The refresh from what is kept of a trace, and what chooses the rows of a batch that the next one needs.

    by: one of OWNERS. before: the refresh before. until_ns: the time of the last fault that has come. What has been
    resident since then may be of faults that have not come yet: of the pages, the last snapshot before it is shown, or
    before LATE_NS ago.
    """
    now = now_ns()
    moment = max(until_ns, now - LATE_NS)
    found = Composition(trace, moment)
    times = found.inputs.faults["time_ns"]
    owners = _of_span(found, by, before.until_ns)
    made = Refresh(
        now,
        max(now - before.time_ns, 1) / 1e9,
        max(int(times.max(initial=0)), before.until_ns),
        by,
        owners,
        _of_span(found, "process", before.until_ns),
        found.rss,
        sum(row["faults"] for row in owners),
        lost=sum(n for _, _, n in trace.ledger.losses()),
        completeness=completeness(trace, found.past, found, found.sums),
    )
    return made, _needed(trace, found, moment)


def _of_span(found: Composition, view: str, until_ns: int) -> list[Row]:
    """The rows of a view, with the faults that were recorded since the refresh before.

    They come in order of time, up to 100 ms after it: so these are all behind the last one that it knew, and some
    of them are older than it. Pages without a known owner are one row, whatever the reason: see _needed().
    """
    labels = found.past.labels(view)
    label, names = labels.of[found.fault_cells], labels.labels
    faults = found.inputs.faults
    late = faults["time_ns"] > until_ns
    each = np.full(np.count_nonzero(late), found.past.sampled)
    n = np.bincount(label[late], each, len(names))
    major = np.bincount(label[late], each * (faults["flags"][late] & schema.FAULT_MAJOR != 0), len(names))
    counted = {name: at for at, name in enumerate(names)}
    rows = found.rows(view)
    for row in rows:
        at = counted[row.labels]
        row.values |= {"faults": int(n[at]), "from_disk": int(major[at])}
    unknown = [row for row in rows if row.of("reason")]
    measures = {name for row in unknown for name in row.values}
    together = Row((Label(NOT_KNOWN, "(not known)", reason=NOT_KNOWN),),
                   {name: sum(row[name] for row in unknown) for name in measures})  # fmt: skip
    return [*(row for row in rows if not row.of("reason")), *[together] * bool(unknown)]


def _needed(trace: Trace, found: Composition, moment: int) -> Callable[[Batch], Batch | None]:
    """What chooses the rows that the next refresh needs: the faults that brought what is resident, and all later ones.

    A fault of a page that was given back brings nothing to any later refresh, and neither does a loss of content that
    came before this one, as of the pages that were there after it the faults are kept. Where a page has no fault, the
    loss would only tell why.
    """
    order, times = found.history.faults.order, found.inputs.faults["time_ns"]
    bringers = (found.found.fault, found.loader)
    times = np.unique(np.concatenate([times[order[rows[rows >= 0]]] for rows in bringers]))
    snapshots = Snapshots(trace)
    seen = found.inputs.runs["time"].min(initial=moment)  # what came after the first of the snapshots is not in it
    held = snapshots.at(moment).snapshots
    whole = {(one.time_ns, one.process, one.number) for one in (*held, *snapshots.first(moment))}
    last = max((time for time, *_ in whole), default=0)
    mappings = [found.inputs.runs["mapping"]]

    def chosen(batch: Batch) -> Batch | None:
        kind = batch.schema.name
        if kind == schema.RESIDENT_PAGES.name and (part := batch.snapshot) is not None:
            wanted = part.time_ns > last or (part.time_ns, (part.host, part.pid), part.number) in whole
            return batch if wanted else None
        if kind == schema.PAGE_FAULT.name:
            batch = batch.take((batch["time_ns"] > seen) | np.isin(batch["time_ns"], times))
            mappings.extend(batch[name] for name in ("mapping", "pc_mapping") if name in batch)
        elif kind == schema.CONTENT_LOSS.name:
            batch = batch.take((batch["time_ns"] > seen) | np.isin(batch["event"], _ELSEWHERE))
        elif kind == schema.MAPPING.name and "time_ns" in batch:
            batch = batch.take((batch["time_ns"] > seen) | np.isin(batch["id"], np.concatenate(mappings)))
        return batch if len(batch) else None

    return chosen
