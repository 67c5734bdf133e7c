"""Histories of scripted events, and who brought the pages of a process by them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from slow_memory import Event

from wstrace.analysis.blame.bringers import Found, PageRows
from wstrace.analysis.blame.faults import ANONYMOUS, FaultRows
from wstrace.analysis.blame.history import History
from wstrace.analysis.blame.losses import LossRows, key_of
from wstrace.analysis.blame.sharing import no_ends
from wstrace.analysis.blame.windows import PageSize
from wstrace.schema import KIND_ANON, LOSS_EXECUTED, LOSS_FORKED, LOSS_PERHAPS

END = 1 << 52  # past all pages


def history(
    events: list[Event],
    flags: int = 0,
    kind: int = KIND_ANON,
    kinds: dict[int, int] | None = None,
    *,
    places: dict[int, int] | None = None,
    page_size: int = 4096,
    around: int = 1 << 16,
    lossless: bool = True,
    seen: Sequence[PageRows] = (),
) -> History:
    """Of events at the times 10, 20, 30 ...; kinds: event -> flags of that fault; places: -> whence it came.

    seen: pages that a snapshot showed.
    """
    times = np.arange(1, len(events) + 1, dtype=np.uint64) * np.uint64(10)
    rows = [(number, event) for number, event in enumerate(events) if not event.what]
    at = np.array([number for number, _ in rows], np.intp)
    key = key_of(np.array([e.pid for _, e in rows], np.intp), np.array([e.start for _, e in rows], np.uint64))
    told = np.array([(kinds or {}).get(number, flags) for number, _ in rows], np.uint8)
    place = np.array([(places or {}).get(number, 0) for number, _ in rows], np.uint32)
    faults = FaultRows(key, times[at], told, np.full(len(rows), kind, np.uint8), place)
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
    return History(faults, copyable, losses, no_ends(), seen or [pages_of(0, [], 0)], (np.zeros(0, np.uint64),) * 2,
                   size=PageSize(page_size, around), lossless=lossless)  # fmt: skip


def pages_of(
    pid: int,
    pages: list[int],
    time: int,
    *,
    huge: bool = False,
    mapping: tuple[int, int, int] | None = None,
    writable: bool = False,
    noticed: bool = False,
) -> PageRows:
    """Resident pages of a process; mapping: its first page, the one past it, and the page of the file."""
    n = len(pages)
    low, high, offset = (np.full(n, value, np.uint64) for value in mapping or (0, 0, 0))
    key = key_of(np.full(n, pid, np.intp), np.array(pages, np.uint64))
    return PageRows(key, np.full(n, time, np.uint64), np.full(n, mapping is not None), np.full(n, huge), low, high,
                    offset, np.full(n, writable or noticed), np.full(n, noticed))  # fmt: skip


def told(of: History, pid: int, pages: list[int], time: int = 1 << 40, **how) -> dict[int, tuple[int, int]]:
    """page -> the numbers of the events that may have brought it, of those whose bringer is known."""
    found: Found = of.bringers(pages_of(pid, pages, time, **how))
    event = (of.faults.time // np.uint64(10)).astype(np.intp) - 1
    both = zip(pages, found.first.tolist(), found.second.tolist(), strict=True)
    return {page: (int(event[a]), int(event[b])) for page, a, b in both if a >= 0}


def doubted(of: History, pages: list[int], **how) -> list[bool]:
    """Of pages of process 1, whether another fault than those that are told may have brought it."""
    return of.bringers(pages_of(1, pages, 1 << 40, **how)).doubted.tolist()
