"""What of a file is in memory: in the processes that map it, and in the page cache, by offset and by named part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.places import MappedFile, Part
from wstrace.plugins import default_plugins
from wstrace_plugins.os.intervals import overlap


@dataclass(frozen=True, slots=True)
class Ranges:
    """Byte ranges of a file, sorted and disjoint: from start up to, not including, end; u64, shape (n,)."""

    start: NDArray[Any]
    end: NDArray[Any]

    @classmethod
    def union(cls, start: NDArray[Any], end: NDArray[Any]) -> Ranges:
        """What any of these ranges, in any order, covers."""
        order = np.argsort(start, kind="stable")
        start, end = start[order].astype("<u8"), np.maximum.accumulate(end[order].astype("<u8"))
        first = np.ones(len(start), np.bool_)
        first[1:] = start[1:] > end[:-1]
        return cls(start[first], end[np.append(np.flatnonzero(first)[1:] - 1, len(end) - 1)] if len(end) else end)

    @classmethod
    def of(cls, several: Iterable[Ranges]) -> Ranges:
        """What any of several covers."""
        found = list(several)
        empty = np.empty(0, "<u8")
        return cls.union(np.concatenate([empty, *(one.start for one in found)]),
                         np.concatenate([empty, *(one.end for one in found)]))  # fmt: skip

    @property
    def bytes(self) -> int:
        """Their length together."""
        return int((self.end - self.start).sum())

    def within(self, start: NDArray[Any], end: NDArray[Any]) -> NDArray[np.int64]:
        """The bytes of each range [start, end) that these cover, shape (n,)."""
        return overlap(start, end, self.start, self.end)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that maps the file: which ranges, which of their pages it has in memory; copied: bytes of its own
    copies of pages that it wrote (a private mapping), which are the file's no more.
    """

    pid: int
    name: str
    mapped: Ranges
    resident: Ranges
    copied: int


@dataclass(frozen=True, slots=True)
class FileHeat:
    """What of a file is in memory.

    cached: in the page cache; None where the kernel does not tell, with the reason in not_cached. refused: processes
    whose mappings may not be read.
    """

    path: str
    size: int
    page_size: int
    holders: Sequence[Holder]
    cached: Ranges | None
    not_cached: str = ""
    refused: int = 0
    parts: Sequence[Part] = ()

    @property
    def mapped(self) -> Ranges:
        """What any process maps, up to the file's end."""
        return self._cut(Ranges.of(holder.mapped for holder in self.holders))

    @property
    def resident(self) -> Ranges:
        """What any of the processes has in memory, up to the file's end."""
        return self._cut(Ranges.of(holder.resident for holder in self.holders))

    def _cut(self, ranges: Ranges) -> Ranges:
        """A page may end after the file does."""
        keep = ranges.start < self.size
        return Ranges(ranges.start[keep], np.minimum(ranges.end[keep], np.uint64(self.size)))

    def strip(self, ranges: Ranges, cells: int) -> NDArray[np.float64]:
        """How much of each cell the ranges cover, 0 to 1, from the file's begin to its end, shape (cells,)."""
        borders = np.linspace(0, self.size, cells + 1).astype("<u8")
        lengths = np.maximum((borders[1:] - borders[:-1]).astype(np.int64), 1)
        covered: NDArray[np.float64] = ranges.within(borders[:-1], borders[1:]) / lengths
        return covered

    def part_rows(self) -> list[tuple[Part, int, int | None]]:
        """Each named part with its bytes in memory of processes and in the page cache."""
        start, end = (np.array([getattr(part, name) for part in self.parts], "<u8") for name in ("start", "end"))
        resident = self.resident.within(start, end).tolist()
        cached = [None] * len(self.parts) if self.cached is None else self.cached.within(start, end).tolist()
        return list(zip(self.parts, resident, cached, strict=True))


def parts_of(path: str) -> Sequence[Part]:
    """The named parts of a file, of the first resolver that knows its format."""
    for resolver in default_plugins().make_resolvers().values():
        if found := resolver.parts(MappedFile(path)):
            return found
    return ()
