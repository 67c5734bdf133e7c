"""What of a file is in memory: in the processes that map it, and in the page cache, by offset and by named part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.interfaces import MappedFile, Part
from wstrace.plugins import default_plugins
from wstrace_plugins.os.intervals import Ranges, overlap


class Holder(NamedTuple):
    """A process that maps the file: the bytes that it maps, those of them that it has in memory, and those of its own
    copies of pages that it wrote (a private mapping), which are the file's no more.
    """

    pid: int
    name: str
    mapped: int
    resident: int
    copied: int


@dataclass(frozen=True, slots=True)
class FileHeat:
    """What of a file is in memory.

    mapped, resident: what any of the holders maps and has in memory, up to the file's end. cached: in the page cache;
    None where the kernel does not say, with the reason in not_cached. refused: processes of which the mappings may not
    be read.
    """

    path: str
    size: int
    holders: Sequence[Holder]
    mapped: Ranges
    resident: Ranges
    cached: Ranges | None
    not_cached: str = ""
    refused: int = 0
    parts: Sequence[Part] = ()

    def strip(self, ranges: Ranges, cells: int) -> NDArray[np.float64]:
        """How much of each cell the ranges cover, 0 to 1, from the file's begin to its end, shape (cells,)."""
        borders = np.linspace(0, self.size, cells + 1).astype("<u8")
        lengths = np.maximum((borders[1:] - borders[:-1]).astype(np.int64), 1)
        covered: NDArray[np.float64] = overlap(borders[:-1], borders[1:], *ranges) / lengths
        return covered

    def part_rows(self) -> list[tuple[Part, int, int | None]]:
        """Each named part with its bytes in memory of processes and in the page cache."""
        start, end = (np.array([getattr(part, name) for part in self.parts], "<u8") for name in ("start", "end"))
        resident = overlap(start, end, *self.resident).tolist()
        cached = [None] * len(self.parts) if self.cached is None else overlap(start, end, *self.cached).tolist()
        return list(zip(self.parts, resident, cached, strict=True))


def parts_of(path: str) -> Sequence[Part]:
    """The named parts of a file, of the first resolver that knows its format."""
    for resolver in default_plugins().make_resolvers().values():
        if found := resolver.parts(MappedFile(path)):
            return found
    return ()
