"""Looks up the mappings of a whole batch of addresses at once, each as it was at its own row's time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.analysis.tally import distinct
from wstrace_plugins.mapped_files.epoch import Epoch, FragmentTable, Past
from wstrace_plugins.mapped_files.spaces import AddressSpaces, ProcessHistory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[Any] | slice

#: Linux pids are below this (PID_MAX_LIMIT), where a lookup table is cheaper than sorting
_PID_TABLE = 1 << 22

#: up to so many addresses of one process, a search each costs less than arrays of its mappings; of a node, most
#: processes of a batch have one
_FEW = 8

#: limit on (fragment, address range) pairs, so that a target that maps in many steps cannot make the tracer grow
_MOST_LAYERS = 1 << 22


class Found(NamedTuple):
    """What lies at the addresses: columns of shape (n,). `missing` holds the rows at which nothing is mapped."""

    id: NDArray[Any]
    file: NDArray[Any]
    kind: NDArray[Any]
    missing: NDArray[Any]


def by_pid(pids: NDArray[Any]) -> list[tuple[int, Rows]]:
    """The distinct pids, each with its rows: a slice when there is only one pid, else indices in rising order."""
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
    spaces: AddressSpaces, groups: list[tuple[int, Rows]], addresses: NDArray[Any], times: NDArray[Any] | int
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
    for pid, rows in _without_few(spaces, groups, addresses, times, found):
        for epoch, part in _by_epoch(spaces.used(pid), rows, times):
            time = times[part] if isinstance(times, np.ndarray) else times
            missed = _in_epoch(epoch, addresses[part], time, part, found)
            if len(missed):
                missing.append(missed if isinstance(part, slice) else part[missed])
    return found._replace(missing=np.concatenate(missing)) if missing else found


def _by_epoch(process: ProcessHistory, rows: Rows, times: NDArray[Any] | int) -> Iterator[tuple[Epoch, Rows]]:
    if not isinstance(times, np.ndarray):
        yield process.current(times), rows
        return
    if len(process.epochs) == 1:
        yield process.epochs[0], rows
        return
    starts = np.array([epoch.start for epoch in process.epochs], "<u8")
    own = times[rows]
    if not len(own) or own.min() >= starts[-1]:
        yield process.epochs[-1], rows
        return
    which = np.maximum(np.searchsorted(starts, own, side="right"), 1) - 1
    for number in distinct(which).tolist():
        part = np.flatnonzero(which == number)
        yield process.epochs[number], part if isinstance(rows, slice) else rows[part]


def _in_epoch(epoch: Epoch, addresses: NDArray[Any], times: Any, rows: Rows, found: Found) -> NDArray[Any]:
    """Fills in the rows that lie in one epoch; gives those of them (counted within it) that nothing covers."""
    table = epoch.table
    oldest = times if not isinstance(times, np.ndarray) else times.min(initial=table.newest)
    at, inside = _likely(table, addresses)
    if inside.all() and table.birth[at] <= oldest:
        found.id[rows], found.file[rows], found.kind[rows] = table.id[at], table.file[at], table.kind[at]
        return np.empty(0, "i8")
    at = np.where(inside, at, 0)
    others = np.flatnonzero(~inside)
    at[others] = np.searchsorted(table.start, addresses[others], side="right")
    missed = addresses >= table.end.take(at)
    if table.newest > oldest:
        missed |= table.birth.take(at) > times
    some = bool(missed.any())
    if some:
        at[missed] = 0
    found.id[rows], found.file[rows], found.kind[rows] = table.id.take(at), table.file.take(at), table.kind.take(at)
    if not some:
        return np.empty(0, "i8")
    again = np.flatnonzero(missed)
    when = times[again] if isinstance(times, np.ndarray) else np.full(len(again), times, "<u8")
    past = epoch.past(int(when.min()))
    which = _earlier(past, addresses[again], when, max(epoch.early, 0))
    hit = which >= 0
    if hit.any():
        target, of = again[hit] if isinstance(rows, slice) else rows[again[hit]], which[hit]
        found.id[target], found.file[target], found.kind[target] = past.id[of], past.file[of], past.kind[of]
    return again[~hit]


def _without_few(
    spaces: AddressSpaces,
    groups: list[tuple[int, Rows]],
    addresses: NDArray[Any],
    times: NDArray[Any] | int,
    found: Found,
) -> list[tuple[int, Rows]]:
    """Fills in the rows of processes that have few and lie in mappings of now; gives the groups that are left."""
    left: list[tuple[int, Rows]] = []
    few: list[tuple[int, NDArray[Any]]] = []
    for pid, rows in groups:
        own = np.arange(len(addresses)) if isinstance(rows, slice) and len(addresses) <= _FEW else rows
        (left if isinstance(own, slice) or len(own) > _FEW else few).append((pid, own))  # type: ignore[arg-type]
    if not few:
        return left
    where = np.concatenate([rows for _, rows in few])
    asked = addresses[where].tolist()
    when = times[where].tolist() if isinstance(times, np.ndarray) else [times] * len(where)
    ids, files, kinds = [0] * len(where), [0] * len(where), [0] * len(where)
    at = 0
    for pid, rows in few:
        process, places = spaces.used(pid), range(at, at + len(rows))
        at += len(rows)
        epoch = process.epochs[-1] if isinstance(times, np.ndarray) else process.current(times)
        for place in places:
            one = epoch.covering(asked[place])
            if one is None or one.birth > when[place] or epoch.start > when[place]:
                left.append((pid, rows))
                break
            mapping = one.mapping
            ids[place], files[place], kinds[place] = mapping.id, mapping.file, mapping.kind
    found.id[where], found.file[where], found.kind[where] = ids, files, kinds
    return left


def _likely(table: FragmentTable, addresses: NDArray[Any]) -> tuple[Any, NDArray[Any]]:
    """The row of the fragment around the middle one of the addresses, and which of them lie in it.

    Most faults of a batch lie in one mapping, and most of the instructions in one file: to compare with the ends of one
    fragment takes a tenth of a search.
    """
    if not len(addresses):
        return 0, np.zeros(0, np.bool_)
    at = np.searchsorted(table.start, addresses[len(addresses) // 2], side="right")
    start = table.start[at - 1]
    return at, addresses - start < (table.end[at] - start if at else 0)


def _earlier(past: Past, addresses: NDArray[Any], times: NDArray[Any], early: int) -> NDArray[Any]:
    """For each row the number of the fragment that covered it at its time, -1 for none; shape (n,).

    A row before the time `early` where nothing ever lay before takes the first fragment that came by then.
    """
    which = np.full(len(addresses), -1)
    # between two neighbouring ends of fragments the same ones lie; places are those of them that are asked for
    cuts = distinct(np.concatenate((past.start, past.end)))
    between = np.searchsorted(cuts, addresses, side="right")
    asked = np.zeros(len(cuts) + 1, "i8")
    asked[between] = 1
    places = np.cumsum(asked)
    place = places[between] - 1
    first, last = places[np.searchsorted(cuts, past.start)], places[np.searchsorted(cuts, past.end)]
    layers = last - first
    layers[np.cumsum(layers[::-1])[::-1] > _MOST_LAYERS] = 0  # the newest are kept
    if not layers.any():
        return which
    number = np.repeat(np.arange(len(layers)), layers)
    at = np.arange(len(number)) - np.repeat(np.cumsum(layers) - layers, layers) + first[number]
    births = distinct(past.birth)
    rank = np.searchsorted(births, past.birth) + 1
    key = at * (len(births) + 1) + rank[number]
    order = np.argsort(key, kind="stable")
    key, number, at = key[order], number[order], at[order]
    # the newest one of the place that was born by then
    wanted = place * (len(births) + 1) + np.searchsorted(births, times, side="right")
    newest = np.searchsorted(key, wanted, side="right") - 1
    before = (newest >= 0) & (at[newest] == place)
    there = before & (times < past.death[number[newest]])
    which[there] = number[newest[there]]
    following = np.minimum(newest + 1, len(key) - 1)
    late = ~before & (times < np.uint64(early)) & (newest + 1 < len(key)) & (at[following] == place)
    late &= past.birth[number[following]] <= np.uint64(early)  # what is mapped later was not there
    which[late] = number[following[late]]
    return which
