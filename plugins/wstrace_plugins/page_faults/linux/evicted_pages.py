"""Pages that left the page cache, of all files of the machine, of which most are nobody's that is traced.

Where memory is short there are ten thousands a second. So they become objects only where a traced process has ever
mapped a file with their inode: that takes 4.5 us of our CPU each, and to leave one out 0.08.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace_plugins.page_faults.linux import perf_event as perf

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace_plugins.page_faults.linux.calls_of_all import Record

#: Neighbouring pages of a file that left one after the other; past: the page behind the last one.
EVICTED: np.dtype[Any] = np.dtype([(name, "<u8") for name in ("time_ns", "device", "inode", "first", "past")])
_NONE = np.zeros(0, EVICTED)
#: The type of such a record, which no record of the kernel has; and what it tells, without its time.
KIND, PAGES = -3, struct.Struct("<4Q")
_INODE, _AT_INODE = struct.Struct("<Q"), 48  # of a PERF_RECORD_MMAP2


class EvictedPages:
    """Holds them until the watermark passes them."""

    def __init__(self) -> None:
        self._held: list[NDArray[Any]] = []
        self._others = _NONE

    def __bool__(self) -> bool:
        """Whether there are any that wait."""
        return bool(self._held)

    def hold(self, rows: NDArray[Any]) -> None:
        """Adds rows of EVICTED."""
        if len(rows):
            self._held.append(rows)

    def give(self, watermark: int, inodes: Collection[int], records: Iterable[Record]) -> list[Record]:
        """Those up to the watermark of files with these inodes, or that these records map."""
        held, self._held = np.concatenate([_NONE, *self._held]), []
        late = held["time_ns"] > watermark
        self.hold(held[late])
        self._others = held[~late]
        if not len(self._others):
            return []
        mapped = (record for _, kind, _, record in records if kind == perf.PERF_RECORD_MMAP2)
        return self.of({*inodes, *(_INODE.unpack_from(record, _AT_INODE)[0] for record in mapped)})

    def of(self, inodes: Collection[int]) -> list[Record]:
        """Those that the last give() left out, of files with these inodes."""
        if not len(self._others) or not inodes:
            return []
        known = np.sort(np.array(list(inodes), "<u8"))
        places = known.searchsorted(self._others["inode"])
        mine = known.take(places, mode="clip") == self._others["inode"]
        given, self._others = self._others[mine], self._others[~mine]
        return [(row[0], KIND, 0, PAGES.pack(*row[1:])) for row in given.tolist()]
