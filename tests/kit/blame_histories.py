"""Histories of scripted events, and who brought the pages of a process by them."""

from collections.abc import Container, Sequence

import numpy as np

from kit.slow_memory import Event
from wstrace.analysis.arrival import History, PageRows, PageSize
from wstrace.analysis.copies import Ends
from wstrace.analysis.faults import ANONYMOUS, FaultRows
from wstrace.analysis.losses import LossRows, key_of
from wstrace.schema import KIND_ANON, LOSS_EXECUTED, LOSS_FORKED, LOSS_PERHAPS

END = 1 << 52  # past all pages


def history(
    events: list[Event], kind: int = KIND_ANON, kinds: dict[int, int] | None = None, *, seen: Sequence[PageRows] = (),
    huge: Container[int] = (), span: int = 9,
) -> History:  # fmt: skip
    """Of events at the times 10, 20, 30 ..., each of its own place; kinds: event -> flags of that fault.

    seen: pages that a snapshot showed. huge: the events that are faults of a huge page of so many pages (a power of 2).
    """
    times = np.arange(1, len(events) + 1, dtype=np.uint64) * np.uint64(10)
    rows = [(number, event) for number, event in enumerate(events) if not event.what]
    at = np.array([number for number, _ in rows], np.intp)
    key = key_of(np.array([e.pid for _, e in rows], np.intp), np.array([e.start for _, e in rows], np.uint64))
    shown = np.array([(kinds or {}).get(number, 0) for number, _ in rows], np.uint8)
    place = at.astype(np.uint32)
    spans = np.array([span if number in huge else 0 for number, _ in rows], np.uint8)
    faults = FaultRows(key, times[at], shown, np.full(len(rows), kind, np.uint8), place, spans)
    lost = [(number, event) for number, event in enumerate(events) if event.what]
    whole = [e.what in (LOSS_EXECUTED, LOSS_FORKED, LOSS_PERHAPS) for _, e in lost]
    losses = LossRows(
        times[np.array([number for number, _ in lost], np.intp)],
        np.array([e.pid for _, e in lost], np.intp),
        np.array([e.what for _, e in lost], np.uint8),
        np.array([0 if all_ else e.start for all_, (_, e) in zip(whole, lost, strict=True)], np.uint64),
        np.array([END if all_ else e.end for all_, (_, e) in zip(whole, lost, strict=True)], np.uint64),
        np.array([e.to for _, e in lost], np.uint64),
        np.array([e.other for _, e in lost], np.intp),
    )
    copyable = np.full(len(rows), kind in ANONYMOUS)
    ended = Ends(np.zeros(0, np.intp), np.zeros(0, np.uint64))
    return History(faults, copyable, losses, ended, seen or [pages_of(0, [], 0)], (np.zeros(0, np.uint64),) * 2,
                   size=PageSize())  # fmt: skip


def pages_of(
    pid: int, pages: list[int], time: int, *, mapping: tuple[int, int, int] | None = None, noticed: bool = False
) -> PageRows:
    """Resident pages of a process; mapping: its first page, the one past it, and the page of the file."""
    n = len(pages)
    low, high, offset = (np.full(n, value, np.uint64) for value in mapping or (0, 0, 0))
    key = key_of(np.full(n, pid, np.intp), np.array(pages, np.uint64))
    return PageRows(key, np.full(n, time, np.uint64), np.full(n, mapping is not None), low, high, offset,
                    np.full(n, noticed))  # fmt: skip


def owned(of: History, pid: int, pages: list[int], time: int = 1 << 40, **how) -> dict[int, tuple[int, bool]]:
    """page -> the number of the event that owns it, and whether that is an estimate; others are left out."""
    found = of.owners(pages_of(pid, pages, time, **how), from_before=lambda spaces: spaces < 0, lossy=False)
    event = (of.faults.time // np.uint64(10)).astype(np.intp) - 1
    both = zip(pages, found.fault.tolist(), found.estimated.tolist(), strict=True)
    return {page: (int(event[at]), estimated) for page, at, estimated in both if at >= 0}
