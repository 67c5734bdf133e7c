"""`with wstrace.delta() as d:` what a block of code brought into memory and wrote, without privilege."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

import wstrace
from wstrace.errors import Unavailable
from wstrace_plugins.os.intervals import Ranges, cut, n_bytes, overlap, without
from wstrace_plugins.working_set.backend import backend
from wstrace_plugins.working_set.sections import sectioned
from wstrace_plugins.working_set.working_set import WorkingSet, working_set

DeltaBy = Literal["module", "kind", "section"]


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one owner, in bytes: newly in memory, no longer in memory, written (None = not watched)."""

    name: str
    kind: str
    new: int
    gone: int
    written: int | None


class Delta:
    """What happened between two snapshots. The figures are available after finish() or the end of the with block.

    before, after: the two snapshots. minor_faults, major_faults: from the system's own accounting (getrusage), None
    where it has none; they include at most watch_faults that write watch itself caused (the first write to a page that
    was already in memory). new_bytes, gone_bytes: pages in memory after but not before, and the reverse. written_bytes:
    bytes of the written pages, None when they were not watched: not_written says why. seconds: length of the block.
    What the tool itself touches and writes (some 100 KiB, and 1 MiB of pages that hold Python's own objects) is
    included in the figures of pages, not in those of faults.
    """

    def __init__(self, pid: int | None = None, *, written: bool = True) -> None:
        self.pid, self.seconds = pid, 0.0
        self.minor_faults: int | None = None
        self.major_faults: int | None = None
        self.watch_faults = self.new_bytes = self.gone_bytes = 0
        self.written_bytes: int | None = None
        self.not_written = "" if written else "it was not requested"
        self._watch: Any = None
        self._written: Ranges | None = None
        if pid is not None:
            self.not_written = "only the calling process is watched"
        else:  # warm up: run once so that our own pages are resident before the first snapshot
            backend().faults()
            working_set()
            try:
                self._watch = wstrace.MemoryWatch() if written else None
                if self._watch is not None:
                    self._watch.written()
            except Unavailable as refused:
                self.not_written = str(refused)
        self.before: WorkingSet = working_set(pid)
        self.after = self.before
        if self._watch is not None:
            self._watch.reset()
        self._faults = backend().faults()
        self._started = time.perf_counter()

    def finish(self) -> Self:
        """Takes the second snapshot and computes the figures. Raises TargetExited."""
        self.seconds = time.perf_counter() - self._started
        if self.pid is None:
            minor, major = backend().faults()
            self.minor_faults = minor - self._faults[0]
            self.major_faults = None if major is None else major - self._faults[1]
        written: Ranges | None = None
        if self._watch is not None:
            written = self._watch.written()
            self._watch.close()
            self._watch = None
        self.after = working_set(self.pid, strings=self.before.strings)
        old, new = _resident(self.before), _resident(self.after)
        self._new, self._gone = without(*new, *old)[:2], without(*old, *new)[:2]
        self.new_bytes, self.gone_bytes = n_bytes(self._new), n_bytes(self._gone)
        if written is not None:
            self._written = _ranges(*written, self.after.page_size)
            self.written_bytes = n_bytes(self._written)
            self.watch_faults = int(overlap(*self._written, *old).sum()) // self.after.page_size
        return self

    def by(self, what: DeltaBy = "module") -> list[Change]:
        """The changes by owner, most new bytes first.

        Args:
            what: module = the file or `[heap]`, `[anon]` ...; kind; section = `file!.text(14)` for addresses in an
                image, where the resolver `sections` is available.
        """
        before, after = (sectioned(one) if what == "section" else one for one in (self.before, self.after))
        rows: dict[tuple[str, str], list[int]] = {}
        for column, (taken, ranges) in enumerate(((after, self._new), (before, self._gone), (after, self._written))):
            for name, kind, size in _owners(taken, ranges, what) if ranges is not None else ():
                rows.setdefault((name, kind), [0, 0, 0])[column] += size
        none = self._written is None
        found = [Change(name, kind, n[0], n[1], None if none else n[2]) for (name, kind), n in rows.items()]
        return sorted(found, key=lambda change: (-change.new, -(change.written or 0), change.name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.finish()

    def __repr__(self) -> str:
        return (f"<Delta minor_faults={self.minor_faults} major_faults={self.major_faults} new_bytes={self.new_bytes} "
                f"gone_bytes={self.gone_bytes} written_bytes={self.written_bytes}>")  # fmt: skip


def delta(*, written: bool = True) -> Delta:
    """A context manager that reports what its block brought into memory and wrote in the calling process.

    Args:
        written: also report the written pages. Linux: all writable memory is write-protected for the block, which costs
            about 1 us per page written and splits the transparent huge pages that are written.

    Returns:
        A Delta; its figures are available after the block.
    """
    return Delta(written=written)


def _resident(taken: WorkingSet) -> Ranges:
    """Start and end of the resident runs."""
    return _ranges(taken.runs["start"][taken.resident], taken.runs["pages"][taken.resident], taken.page_size)


def _ranges(start: NDArray[Any], pages: NDArray[Any], page_size: int) -> Ranges:
    return start, start + pages.astype("<u8") * np.uint64(page_size)


def _owners(taken: WorkingSet, ranges: Ranges, what: DeltaBy) -> list[tuple[str, str, int]]:
    """(owner, kind, bytes) of ranges of addresses; what is outside of all mappings is left out."""
    low, high, _ = cut(*ranges, np.union1d(taken.mappings["start"], taken.mappings["end"]))
    row = np.searchsorted(taken.mappings["start"], low, "right") - 1
    inside = (row >= 0) & (low < taken.mappings["end"][row])
    low, high, row = (column[inside] for column in (low, high, row))
    pages = (high - low) // np.uint64(taken.page_size)
    runs = {"start": low, "pages": pages, "flags": np.zeros(len(low), "<u2"), "row": row}
    owners = replace(taken, runs=runs).by("kind" if what == "kind" else "module")
    return [(owner.name, owner.kind, owner.resident) for owner in owners if owner.resident]
