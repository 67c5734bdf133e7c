"""Listings: queries the system for mappings that no row reported (mremap, lost rows), rarely, and for build-ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.tally import distinct
from wstrace.batch import Dictionary
from wstrace.clock import now_ns
from wstrace.errors import Unavailable
from wstrace.schema import KIND_FILE, MAP_EXECUTE
from wstrace_plugins.mapped_files.epoch import NEVER, Epoch
from wstrace_plugins.mapped_files.epoch import MappingRow as Row
from wstrace_plugins.mapped_files.spaces import KERNEL_START, AddressSpaces
from wstrace_plugins.os import backend

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLUMNS = ("start", "end", "offset", "file", "dev", "ino", "flags")
#: reading the mappings of one process takes at most this share of the time
_SHARE = 20


class Listings:
    """Lists the mappings of live processes, for addresses that nothing covers in their newest image.

    Args:
        strings: the session's names.
        system: the backend to query; None = that of the running system.
    """

    def __init__(self, strings: Dictionary, system: ModuleType | Any = None) -> None:
        self._strings = strings
        self._system = system
        self.asked = self.refused = self.added = 0

    def fill(self, spaces: AddressSpaces, pid: int, addresses: NDArray[Any], times: NDArray[Any] | int) -> bool:
        """Queries the addresses of a process (u64, shape (n,)) that were missing at those times.

        Returns True when some are now known. What it finds counts from the first missing time on.
        """
        process = spaces.process(pid)
        epoch = process.epochs[-1]
        when = np.broadcast_to(np.asarray(times, "<u8"), addresses.shape)
        # already covered again: what lay there at the time of the miss has gone, and no listing shows it
        table = epoch.table
        uncovered = addresses >= table.end[np.searchsorted(table.start, addresses, side="right")]
        wanted = uncovered & (when >= epoch.start) & (addresses < KERNEL_START)
        now = now_ns()
        known = process.reported or spaces.forgotten > 0
        if not wanted.any() or not known or process.ended != NEVER or epoch.blind or now < process.listing_due:
            return False
        columns = self._listing(pid, addresses[wanted])
        process.listing_due = now + max(self._system.LISTING_NS, _SHARE * (now_ns() - now))
        if columns is None or not len(columns["start"]) or not self._same_image(epoch, columns):
            self.refused += 1
            return False
        return self._add(spaces, epoch, pid, columns, addresses[wanted], when[wanted])

    def build_ids(self, rows: Iterable[Row]) -> list[int]:
        """The codes of the build-ids of these mappings' files, 0 where unknown.

        Only executed files are read, once per process: after chroot(2) one may map another file of the same name.
        """
        asked: dict[tuple[int, int, int, int], Row] = {}
        for row in rows:
            if row.kind == KIND_FILE and row.flags & MAP_EXECUTE:
                asked.setdefault((row.pid, row.file, row.dev, row.ino), row)
        found = self._backend().build_ids(list(asked.values()), self._strings) if asked else ()
        codes = dict(zip(asked, map(self._strings.code, found), strict=True))
        return [codes.get((row.pid, row.file, row.dev, row.ino), 0) for row in rows]

    def _backend(self) -> Any:
        self._system = self._system or backend("wstrace_plugins.mapped_files")
        return self._system

    def _listing(self, pid: int, addresses: NDArray[Any]) -> Mapping[str, NDArray[Any]] | None:
        self.asked += 1
        try:
            found: Mapping[str, NDArray[Any]] | None = self._backend().listing(pid, addresses, self._strings)
        except Unavailable:
            return None
        return found

    def _same_image(self, epoch: Epoch, columns: Mapping[str, NDArray[Any]]) -> bool:
        """False when the process has called execve() since: then it has none of the mappings that we know."""
        if not self._system.COMPLETE or not len(epoch):
            return True
        listed = set(zip(columns["start"].tolist(), columns["file"].tolist(), strict=True))
        return any((f.start, f.mapping.file) in listed for f in epoch.live)

    def _add(
        self,
        spaces: AddressSpaces,
        epoch: Epoch,
        pid: int,
        columns: Mapping[str, NDArray[Any]],
        addresses: NDArray[Any],
        times: NDArray[Any],
    ) -> bool:
        row = np.searchsorted(columns["start"], addresses, side="right") - 1
        inside = (row >= 0) & (addresses < columns["end"][row])
        since = np.full(len(columns["start"]), np.iinfo("<u8").max, "<u8")
        np.minimum.at(since, row[inside], times[inside])
        nothing = np.zeros(len(since), "<u8")
        rows = distinct(row[inside]).tolist()
        for number in rows:
            start, end, *rest = (int(columns.get(name, nothing)[number]) for name in _COLUMNS)
            spaces.map(epoch, int(since[number]), pid, start, end, tuple(rest))
        self.added += len(rows)
        return bool(rows)
