"""MappedFiles: adds mapping and file to every record's address, and emits the `mapping` rows that the ids refer to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wstrace.batch import Batch, SnapshotPart
from wstrace.interfaces import Context, Enricher
from wstrace.schema import ADDRESS_SPACE, DTYPES, MAPPING, PAGE_FAULT, PROCESS
from wstrace_plugins.mapped_files.epoch import MappingRow
from wstrace_plugins.mapped_files.listings import Listings
from wstrace_plugins.mapped_files.lookup import Found, by_pid, look_up
from wstrace_plugins.mapped_files.spaces import AddressSpaces

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace_plugins.mapped_files.lookup import Rows

#: address_space rows that may be held back while no batch of records needs them; more are applied at once
_MOST_PENDING = 65_536
#: the longest, in ns, for which what ended is known for the sake of records that are held
_MOST_HELD_NS = 60_000_000_000

_SPACE_COLUMNS = ("time_ns", "event", "pid", "start", "end", "offset", "file", "dev", "ino", "flags")
_PROCESS_COLUMNS = ("time_ns", "event", "pid", "ppid")


class MappedFiles(Enricher):
    """Adds the file that lay at each address of page faults, resident and written pages, at the record's time.

    A live process's mappings are listed again when an address lies in none that is known (after mremap).
    """

    name: ClassVar[str] = "mapped_files"
    #: the backend that lists them; None = that of the running system
    system: Any = None

    def __init__(self) -> None:
        self._pending: dict[str, list[tuple[Any, ...]]] = {}
        #: sources whose process rows have come, and the address_space rows of the same time not yet
        self._halfway: set[str] = set()
        self._faults = False
        self._rows = self._unresolved = 0
        self.start(Context())

    def start(self, context: Context) -> None:
        """Begins with no process known."""
        self._context = context
        context.provide_mappings_at(self._ids_at)
        #: False for a replay: the processes of a recorded trace are not those of this machine now
        self._alive = context.live
        self._spaces = AddressSpaces(context.strings)
        self._listings = Listings(context.strings, self.system)

    def enrich(self, batch: Batch) -> Iterable[Batch]:
        """Holds address_space rows, holds and passes on process rows, and adds columns to records."""
        if batch.schema.name == ADDRESS_SPACE.name:
            self._hold(batch, 1, _SPACE_COLUMNS)
        elif batch.schema.name == PROCESS.name:
            if not self._context.info.recorded:  # a trace file has the mappings, and no rows that would change them
                # the start and end of a thread change no address space
                own = batch.take(batch["tid"] == batch["pid"]) if "tid" in batch and "pid" in batch else batch
                self._hold(own, 0, _PROCESS_COLUMNS)
            yield batch
        elif "mapping" in batch or "mapping" not in {column.name for column in batch.schema.columns}:
            yield batch  # a replay has the columns already, or the stream has no addresses
        else:
            self._halfway.discard(batch.source)  # a source gives its records after the rows that these need
            self._apply()
            columns = self._page_faults(batch) if batch.schema.name == PAGE_FAULT.name else self._pages(batch)
            yield from self._mappings(batch)
            yield batch.with_columns(columns)
            self._passed(batch)
        if sum(map(len, self._pending.values())) > _MOST_PENDING:
            self._apply(every=sum(map(len, self._pending.values())) > 2 * _MOST_PENDING)
            self._passed(batch)
            yield from self._mappings(batch)

    def close(self) -> Iterable[Batch]:
        """Emits the mappings that no record has referred to yet."""
        self._apply(every=True)
        if self._rows or self._spaces.mappings > 1:  # a replay brings its own mappings
            yield from self._mappings(None)

    def statistics(self) -> Mapping[str, int | float]:
        """Addresses looked up and unresolved; mappings, processes, epochs and fragments held; listings made."""
        return {
            "addresses": self._rows,
            "unresolved": self._unresolved,
            **self._spaces.statistics(),
            "listings": self._listings.asked,
            "listings_refused": self._listings.refused,
            "listed": self._listings.added,
        }

    # -- what sources tell -----------------------------------------------------------------------------------------

    def _hold(self, batch: Batch, order: int, names: tuple[str, ...]) -> None:
        absent = [0] * len(batch)
        columns = [batch[name].tolist() if name in batch else absent for name in names]
        if "time_ns" not in batch:
            columns[0] = [batch.window[1]] * len(batch)
        held = self._pending.setdefault(batch.source, [])
        held += zip(columns[0], [order] * len(batch), *columns[1:], strict=True)
        if order:
            self._halfway.discard(batch.source)
        else:
            self._halfway.add(batch.source)

    def _apply(self, *, every: bool = False) -> None:
        """Applies held rows in order of time; at equal times process rows come first.

        The rows of a source that is halfway stay held, unless `every`: records of another source may come between its
        process rows and its address_space rows, and a fork applied then would inherit mappings that are not known yet.
        """
        ready = [source for source in self._pending if every or source not in self._halfway]
        rows = [row for source in ready for row in self._pending.pop(source)]
        if not rows:
            return
        rows.sort(key=itemgetter(0, 1))
        spaces = self._spaces
        if not self._faults:  # the first ones come with these, however far behind the snapshots of another source
            spaces.told(rows[0][0])
        for row in rows:
            if row[1]:
                time, _, event, pid, start, end, *rest = row
                spaces.apply(event, time, pid, start, end, tuple(rest))
            else:
                time, _, event, pid, ppid = row
                spaces.apply_process(event, time, pid, ppid)
        spaces.end_listing()

    def _passed(self, batch: Batch) -> None:
        """Forgets what ended long before the newest record.

        Faults may be far behind the snapshots of another source, and behind the end of their own window: one read of
        the rings makes many batches with one window. Samples of stacks, which are held, may be farther behind.
        """
        time = batch.window[1]
        if batch.schema.name == PAGE_FAULT.name:
            self._faults = True
            if len(batch) and "time_ns" in batch:
                time = int(batch["time_ns"].max())
        elif self._faults:
            return
        self._spaces.passed(max(min([time, *(since() for since in self._context.held_since)]), time - _MOST_HELD_NS))

    def _ids_at(self, pids: NDArray[Any], addresses: NDArray[Any], times: NDArray[Any]) -> NDArray[Any]:
        """The ids of the mappings at addresses of processes at times: see Context.mappings_at()."""
        return look_up(self._spaces, by_pid(pids), addresses, times).id

    # -- records ---------------------------------------------------------------------------------------------------

    def _page_faults(self, batch: Batch) -> dict[str, NDArray[Any]]:
        times = np.ascontiguousarray(batch["time_ns"]) if "time_ns" in batch else batch.window[1]
        groups = by_pid(np.ascontiguousarray(batch["pid"]) if "pid" in batch else np.zeros(len(batch), "<u4"))
        columns: dict[str, NDArray[Any]] = {}
        if "va" in batch:
            found = self._found(groups, batch["va"], times, "va")
            columns = {"mapping": found.id, "file": found.file, "kind": found.kind}
        if "pc" in batch:
            found = self._found(groups, batch["pc"], times, "pc")
            columns |= {"pc_mapping": found.id, "pc_file": found.file}
        return columns

    def _pages(self, batch: Batch) -> dict[str, NDArray[Any]]:
        part = batch.snapshot or SnapshotPart(time_ns=batch.window[1])
        groups: list[tuple[int, Rows]] = [(part.pid, slice(None))] if len(batch) else []
        found = self._found(groups, batch["start"], part.time_ns, batch.schema.name)
        return {"mapping": found.id, "file": found.file, "kind": found.kind}

    def _found(
        self, groups: list[tuple[int, Rows]], column: NDArray[Any], times: NDArray[Any] | int, who: str
    ) -> Found:
        addresses = np.ascontiguousarray(column, "<u8")
        found = look_up(self._spaces, groups, addresses, times)
        if len(found.missing) and self._alive:
            found = self._ask(groups, addresses, times, found)
        self._rows += len(addresses)
        self._unresolved += len(found.missing)
        self._context.ledger.add("unresolved", len(found.missing), who)
        return found

    def _ask(
        self, groups: list[tuple[int, Rows]], addresses: NDArray[Any], times: NDArray[Any] | int, found: Found
    ) -> Found:
        """Queries the live processes about the rows that are missing, then looks these rows up again."""
        missing = np.zeros(len(addresses), bool)
        missing[found.missing] = True
        still = [found.missing[:0]]
        for pid, rows in groups:
            own = np.flatnonzero(missing) if isinstance(rows, slice) else rows[missing[rows]]
            if not len(own):
                continue
            when = times[own] if isinstance(times, np.ndarray) else times
            if not self._listings.fill(self._spaces, pid, addresses[own], when):
                still.append(own)
                continue
            again = look_up(self._spaces, [(pid, slice(None))], addresses[own], when)
            found.id[own], found.file[own], found.kind[own] = again.id, again.file, again.kind
            still.append(own[again.missing])
        return found._replace(missing=np.concatenate(still))

    def _mappings(self, batch: Batch | None) -> Iterator[Batch]:
        rows = self._spaces.taken()
        if rows:
            types = {column.name: DTYPES[column.type] for column in MAPPING.columns}
            columns = zip(MappingRow._fields, zip(*rows, strict=True), strict=True)
            arrays = {name: np.array(values, types[name]) for name, values in columns}
            if self._alive:
                arrays["build_id"] = np.array(self._listings.build_ids(rows), "<u4")
            window = (int(arrays["time_ns"].min()), int(arrays["time_ns"].max()))
            strings = self._context.strings
            yield Batch(MAPPING, arrays, window=window, source=batch.source if batch else self.name, strings=strings)
