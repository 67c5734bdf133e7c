"""MappedFiles: adds mapping and file to every record's address, and emits the `mapping` rows that the ids refer to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.tally import rows_of_each
from wstrace.batch import Batch, Columns, Dictionary, SnapshotPart
from wstrace.clock import now_ns
from wstrace.errors import Unavailable
from wstrace.interfaces import Context, Enricher
from wstrace.schema import ADDRESS_SPACE, DTYPES, KIND_FILE, MAP_EXECUTE, MAPPING, PAGE_FAULT, PROCESS
from wstrace_plugins.mapped_files.spaces import KERNEL_START, NEVER, AddressSpaces, MappingRow
from wstrace_plugins.os import backend

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Groups = list[tuple[int, NDArray[np.intp]]]

#: address_space rows that may be held back while no batch of records needs them; more are applied at once
_MOST_PENDING = 16_384
#: the longest, in ns, for which what ended is known for the sake of records that are held
_MOST_HELD_NS = 60_000_000_000

#: the ns between two listings of a process's mappings, at least, and how many times as long as a listing that is
_LISTING_NS, _SHARE = 100_000_000, 20

_MAPPING_COLUMNS = ("start", "end", "offset", "file", "dev", "ino", "flags")
_SPACE_COLUMNS = ("time_ns", "event", "pid", *_MAPPING_COLUMNS)
_PROCESS_COLUMNS = ("time_ns", "event", "pid", "ppid")


class MappedFiles(Enricher):
    """Adds the file that lay at each address of page faults, resident and written pages, at the record's time.

    A live process's mappings are listed again, rarely, when an address lies in none that is known (after mremap, or
    where rows were lost).
    """

    name = "mapped_files"
    #: the backend that lists them; None = that of the running system
    system: Any = None

    def __init__(self) -> None:
        self._pending: dict[str, list[tuple[Any, ...]]] = {}
        #: sources whose process rows have come, and the address_space rows of the same time not yet
        self._halfway: set[str] = set()
        self._faults = False  # whether any have come
        self._rows = 0  # that were given columns
        self.start(Context())

    def start(self, context: Context) -> None:
        """Begins with no process known."""
        self._context = context
        context.provide_mappings_at(self._ids_at)
        #: False for a replay: the processes of a recorded trace are not those of this machine now
        self._alive = context.live
        self._spaces = AddressSpaces(context.strings)

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
            spaces.awaits(rows[0][0])
        for row in rows:
            if row[1]:
                time, _, event, pid, start, end, *rest = row
                spaces.apply(event, time, pid, start, end, tuple(rest))
            else:
                time, _, event, pid, ppid = row
                spaces.apply_process(event, time, pid, ppid)

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
        self._spaces.passed(max(min(time, self._context.progress.held_since), time - _MOST_HELD_NS))

    def _ids_at(self, pids: NDArray[Any], addresses: NDArray[Any], times: NDArray[Any]) -> NDArray[Any]:
        """The ids of the mappings at addresses of processes at times: see Context.mappings_at()."""
        ids: NDArray[Any] = self._look_up(rows_of_each(pids), addresses, times)[0]
        return ids

    def _page_faults(self, batch: Batch) -> Columns:
        """The columns that name the mappings and files of addresses and instructions."""
        n = len(batch)
        times = np.ascontiguousarray(batch["time_ns"]) if "time_ns" in batch else np.full(n, batch.window[1], "<u8")
        groups = rows_of_each(batch["pid"] if "pid" in batch else np.zeros(n, "<u4"))
        columns: Columns = {}
        if "va" in batch:
            columns = self._found(groups, batch["va"], times, "va")
        if "pc" in batch:
            found = self._found(groups, batch["pc"], times, "pc")
            columns |= {"pc_mapping": found["mapping"], "pc_file": found["file"]}
        return columns

    def _pages(self, batch: Batch) -> Columns:
        """The columns that name the mappings and files of runs of pages."""
        part = batch.snapshot or SnapshotPart(time_ns=batch.window[1])
        times = np.full(len(batch), part.time_ns, "<u8")
        return self._found([(part.pid, np.arange(len(batch)))], batch["start"], times, batch.schema.name)

    def _found(self, groups: Groups, column: NDArray[Any], times: NDArray[Any], who: str) -> Columns:
        """Mapping, file and kind of each address; those of live processes that lie nowhere are listed again."""
        addresses = np.ascontiguousarray(column, "<u8")
        found = self._look_up(groups, addresses, times)
        missing = found[0] == 0
        if self._alive and missing.any():
            for pid, rows in groups:
                own = rows[missing[rows]]
                if len(own) and self._list(pid, addresses[own], times[own]):
                    found[:, own] = self._spaces.process(pid).find(addresses[own], times[own])
            missing = found[0] == 0
        unresolved = int(missing.sum())
        self._rows += len(addresses)
        self._context.ledger.add("unresolved", unresolved, who)
        mapping, file, kind = found
        return {"mapping": mapping, "file": file, "kind": kind.astype("u1")}

    def _look_up(self, groups: Groups, addresses: NDArray[Any], times: NDArray[Any]) -> NDArray[Any]:
        """What lay at each address at its time: id, file and kind, u4, shape (3, n).

        groups: the rows of each pid, as rows_of_each() gives them. addresses: u64, shape (n,). times: ns, shape (n,).
        """
        if len(groups) == 1:
            return self._spaces.process(groups[0][0]).find(addresses, times)
        found = np.zeros((3, len(addresses)), "<u4")
        for pid, rows in groups:
            found[:, rows] = self._spaces.process(pid).find(addresses[rows], times[rows])
        return found

    def _list(self, pid: int, addresses: NDArray[Any], times: NDArray[Any]) -> bool:
        """Queries the system for the addresses of a live process that were missing at those times.

        Returns True when some are now known. What it finds counts from the first missing time on.
        """
        space, now = self._spaces.process(pid), now_ns()
        known = space.reported or self._spaces.forgotten > 0
        if not known or space.ended != NEVER or space.blind or now < space.listing_due:
            return False
        # already covered again: what lay there at the time of the miss has gone, and no listing shows it
        wanted = ~space.covered(addresses) & (times >= space.images[-1][0]) & (addresses < KERNEL_START)
        if not wanted.any():
            return False
        try:
            columns = self._backend().listing(pid, self._context.strings)
        except Unavailable:
            columns = None
        space.listing_due = now + max(_LISTING_NS, _SHARE * (now_ns() - now))
        live = {(start, row.file) for start, _, (row, _) in space.now().rows()}
        # without any that is known, it has called execve() since
        if columns is None or (
            live and live.isdisjoint(zip(*(columns[n].tolist() for n in ("start", "file")), strict=True))
        ):
            columns = {"start": np.empty(0, "<u8")}
        if not len(columns["start"]):
            return False
        addresses, times = addresses[wanted], times[wanted]
        row = np.searchsorted(columns["start"], addresses, side="right") - 1
        inside = (row >= 0) & (addresses < columns["end"][row])
        since = np.full(len(columns["start"]), NEVER, "<u8")
        np.minimum.at(since, row[inside], times[inside])
        nothing = np.zeros(len(since), "<u8")
        rows = np.flatnonzero(since != NEVER).tolist()
        for number in rows:
            start, end, *rest = (int(columns.get(name, nothing)[number]) for name in _MAPPING_COLUMNS)
            self._spaces.map(space, int(since[number]), pid, start, end, tuple(rest))
        return bool(rows)

    def _backend(self) -> Any:
        self.system = self.system or backend("wstrace_plugins.mapped_files")
        return self.system

    def _mappings(self, batch: Batch | None) -> Iterator[Batch]:
        """A batch of the mappings that were added since the last one."""
        rows = self._spaces.taken()
        if rows:
            types = {column.name: DTYPES[column.type] for column in MAPPING.columns}
            columns = zip(MappingRow._fields, zip(*rows, strict=True), strict=True)
            arrays = {name: np.array(values, types[name]) for name, values in columns}
            strings = self._context.strings
            if self._alive:
                arrays["build_id"] = np.array(build_ids(self._backend(), rows, strings), "<u4")
            window = (int(arrays["time_ns"].min()), int(arrays["time_ns"].max()))
            yield Batch(MAPPING, arrays, window=window, source=batch.source if batch else self.name, strings=strings)


def build_ids(system: Any, rows: Iterable[MappingRow], strings: Dictionary) -> list[int]:
    """The codes of the build-ids of these mappings' files, 0 where unknown.

    Only executed files are read, and for each process until one is known: after chroot(2) one may map another file of
    the same name, and not each file may be read by way of each process.
    """
    found: dict[tuple[int, ...], int] = {}
    tried = set()
    for row in rows:
        if row.kind == KIND_FILE and row.flags & MAP_EXECUTE:
            key = _file_of(row)
            if not found.get(key) and (row.pid, key) not in tried:
                tried.add((row.pid, key))
                found[key] = strings.code(system.build_id(row, strings[row.file]))
    return [found.get(_file_of(row), 0) for row in rows]


def _file_of(row: MappingRow) -> tuple[int, ...]:
    """What tells the file of a mapping from others; its name in the process where the system gives no inode."""
    return row.file, row.dev, row.ino, 0 if row.ino else row.pid
