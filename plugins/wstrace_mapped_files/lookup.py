"""Addresses to mappings, a whole batch at once, each as it was at the row's own time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace_mapped_files.epoch import Epoch, Fragment
from wstrace_mapped_files.spaces import Process, Spaces

#: pids of Linux end here (PID_MAX_LIMIT): below it a table is cheaper than sorting
_PID_TABLE = 1 << 22


class Found(NamedTuple):
    """What lies at the addresses, each column of shape (n,); `missing` are the rows for which nothing does."""

    id: NDArray[Any]
    file: NDArray[Any]
    kind: NDArray[Any]
    missing: NDArray[Any]


Rows = NDArray[Any] | slice


def by_pid(pids: NDArray[Any]) -> list[tuple[int, Rows]]:
    """The pids that occur, each with its rows: a slice when it is the only one, else indices in rising order."""
    if not len(pids):
        return []
    if (pids == pids[0]).all():
        return [(int(pids[0]), slice(None))]
    if int(pids.max()) < _PID_TABLE:
        table = np.zeros(int(pids.max()) + 1, "<u4")
        table[pids] = 1
        unique = np.flatnonzero(table)
        table[unique] = np.arange(len(unique))
        slots = table[pids]
    else:
        unique, slots = np.unique(pids, return_inverse=True)
    slots = slots.astype("<u2") if len(unique) <= 1 << 16 else slots  # numpy sorts 16 bits by radix
    order = np.argsort(slots, kind="stable")
    ends = np.cumsum(np.bincount(slots, minlength=len(unique)))
    return list(zip(unique.tolist(), np.split(order, ends[:-1]), strict=True))


def look_up(
    spaces: Spaces, groups: list[tuple[int, Rows]], addresses: NDArray[Any], times: NDArray[Any] | int
) -> Found:
    """What lay at each address.

    Args:
        spaces: the address spaces.
        groups: the rows of each pid, as by_pid() gives them.
        addresses: u64, shape (n,).
        times: ns, shape (n,), or one time for all.
    """
    n = len(addresses)
    found = Found(np.zeros(n, "<u4"), np.zeros(n, "<u4"), np.zeros(n, "u1"), np.empty(0, "i8"))
    missing = []
    for pid, rows in groups:
        for epoch, part in _by_epoch(spaces.used(pid), rows, times):
            time = times[part] if isinstance(times, np.ndarray) else times
            missed = _in_epoch(epoch, addresses[part], time, part, found)
            if len(missed):
                missing.append(missed if isinstance(part, slice) else part[missed])
    return found._replace(missing=np.concatenate(missing)) if missing else found


def _by_epoch(process: Process, rows: Rows, times: NDArray[Any] | int) -> Iterator[tuple[Epoch, Rows]]:
    if not isinstance(times, np.ndarray):
        yield process.current(times), rows
        return
    starts = np.array([epoch.start for epoch in process.epochs], "<u8")
    own = times[rows]
    if len(starts) == 1 or not len(own) or own.min() >= starts[-1]:
        yield process.epochs[-1], rows
        return
    which = np.maximum(np.searchsorted(starts, own, side="right"), 1) - 1
    for number in np.unique(which).tolist():
        part = np.flatnonzero(which == number)
        yield process.epochs[number], part if isinstance(rows, slice) else rows[part]


def _in_epoch(epoch: Epoch, addresses: NDArray[Any], times: Any, rows: Rows, found: Found) -> NDArray[Any]:
    """Fills in the rows that lie in one epoch; gives those of them (counted within it) that nothing covers."""
    table = epoch.table
    at = np.searchsorted(table.start, addresses, side="right")
    missed = addresses >= table.end.take(at)
    if table.newest > (times if not isinstance(times, np.ndarray) else times.min(initial=table.newest)):
        missed |= table.birth.take(at) > times
    some = bool(missed.any())
    if some:
        at[missed] = 0
    found.id[rows], found.file[rows], found.kind[rows] = table.id.take(at), table.file.take(at), table.kind.take(at)
    if not some:
        return np.empty(0, "i8")
    again = np.flatnonzero(missed)
    when = times[again] if isinstance(times, np.ndarray) else np.full(len(again), times, "<u8")
    fragments, which = _earlier(epoch, addresses[again], when)
    hit = which >= 0
    if hit.any():
        target = again[hit] if isinstance(rows, slice) else rows[again[hit]]
        mappings = np.array([(f.mapping.id, f.mapping.file, f.mapping.kind) for f in fragments], "<u4")[which[hit]]
        found.id[target], found.file[target], found.kind[target] = mappings.T
    return again[~hit]


def _earlier(epoch: Epoch, addresses: NDArray[Any], times: NDArray[Any]) -> tuple[list[Fragment], NDArray[Any]]:
    """For rows that no live fragment covers: a fragment that did at that time, or early, the first one that came.

    Returns:
        fragments and, for each row, the number of its fragment or -1, shape (n,).
    """
    fragments = [*epoch.closed, *(f for f in epoch.live if f.birth > int(times.min()))]
    which = np.full(len(addresses), -1)
    if not fragments:
        return fragments, which
    order = np.argsort(addresses, kind="stable")
    ordered = addresses[order]
    first = np.searchsorted(ordered, np.array([f.start for f in fragments], "<u8"))
    last = np.searchsorted(ordered, np.array([f.end for f in fragments], "<u8"))
    touched = np.flatnonzero(last > first).tolist()
    touched.sort(key=lambda number: fragments[number].birth)
    covered = np.zeros(len(addresses), bool)  # something lay there before: nothing early about that row
    later = np.full(len(addresses), -1)
    for number in touched:
        fragment, rows = fragments[number], order[first[number] : last[number]]
        born, gone = times[rows] >= fragment.birth, times[rows] >= fragment.death
        which[rows[born & ~gone]] = number
        covered[rows[gone]] = True
        fresh = rows[~born]
        later[fresh[later[fresh] < 0]] = number
    early = (which < 0) & ~covered & (later >= 0) & (times < np.uint64(max(epoch.early, 0)))
    which[early] = later[early]
    return fragments, which
