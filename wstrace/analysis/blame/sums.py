"""Sums: what several processes have in memory together, as three numbers that answer three questions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.trace_info import TraceInfo

_MOST = 1 << 63
_MOST_PROCESSES = 1 << 16


@dataclass(frozen=True, slots=True)
class Sums:
    """What processes have in memory, in bytes.

    rss_sum: of each process, where a page counts once for each that has it. pss: of each its proportional share: a page
    counts for a part where others have it too. distinct: each page once. None = not known; why: the reason.
    """

    processes: int
    rss_sum: int
    pss: int | None = None
    distinct: int | None = None
    why: str = ""


class ReadSums(NamedTuple):
    """The sums that the source `peak_snapshot` has read of these processes beside a look, between two times in ns."""

    sums: Sums
    pids: frozenset[int]
    begin: int
    end: int


def read_sums(info: TraceInfo) -> ReadSums | None:
    """What a trace says of the sums at the peak; None where it says nothing, or what cannot be."""
    noted = info.extra.get("sums")
    if not isinstance(noted, dict) or not isinstance(pids := noted.get("pids"), list):
        return None
    begin, end, rss_sum, pss, distinct = (
        value if type(value := noted.get(name)) is int and 0 <= value < _MOST else None
        for name in ("from_ns", "to_ns", "rss_sum", "pss", "distinct")
    )
    if begin is None or end is None or rss_sum is None or not 0 < len(pids) <= _MOST_PROCESSES:
        return None
    why = noted.get("why")
    told = Sums(len(pids), rss_sum, pss, distinct, why if isinstance(why, str) else "")
    return ReadSums(told, frozenset(pid for pid in pids if type(pid) is int), begin, end)


def sums_at(
    info: TraceInfo,
    pids: Collection[int],
    times: NDArray[np.uint64],
    total: int,
    pss: int | None,
    *,
    all_kinds: bool,
    at_peak: bool,
) -> Sums:
    """The sums of a composition; pss and distinct as far as they were read at its moment.

    Args:
        info: the description of the trace.
        pids: the processes. times: of their snapshots, in ns.
        total: what is resident in them, in bytes. pss: the same by proportional shares, where their pages tell it.
        all_kinds: whether this is of all kinds of memory. at_peak: whether it is of the largest look.
    """
    noted = read_sums(info)
    why = ""
    if not all_kinds:
        why = "they are read of all memory"
    elif noted is None:
        why = "the trace does not tell (-s peak_snapshot reads them of several processes)"
    elif noted.pids != frozenset(pids) or int(times.min()) < noted.begin or int(times.max()) > noted.end:
        why = "they were read at another moment than this largest look"
        why = why if at_peak else "they were read at the peak only (--at peak)"
    if why or noted is None:
        return Sums(len(pids), total, pss, None, why)
    return Sums(len(pids), total, noted.sums.pss if pss is None else pss, noted.sums.distinct, noted.sums.why)
