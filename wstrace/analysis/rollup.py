"""Rollup: faults and resident bytes of a trace by second, container, process, file and function, in bounded memory."""

from __future__ import annotations

import platform
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.call_tree import CallTree
from wstrace.analysis.own import short_path
from wstrace.analysis.process_names import ProcessNames
from wstrace.analysis.processes import Processes
from wstrace.analysis.segments import distinct
from wstrace.analysis.snapshots import LastSnapshots
from wstrace.analysis.symbols import Symbolizer, label_of
from wstrace.batch import Batch, Dictionary, Translation
from wstrace.cgroup_names import container_id
from wstrace.errors import UsageError
from wstrace.schema import FAULT_MAJOR, KINDS, PAGE_EXCLUSIVE, PAGE_FAULT, PROCESS, RESIDENT_PAGES, Column, Schema
from wstrace.trace_info import TraceInfo

ROLLUP = Schema(
    "rollup",
    (
        Column("host", "u32", "str", "the machine"),
        Column("second", "i64", "count", "when the interval began, in seconds since 1970 (UTC)", unit="s"),
        Column("container_id", "u32", "str", "of the process; empty outside of containers, or where it is not known"),
        Column("process", "u32", "str", "the title or name of the process"),
        Column("file", "u32", "str", "of the page: a path, or [heap], [stack], [anon] ..."),
        Column("function", "u32", "str", "of the Python stack, else of the instruction; empty of resident pages"),
        Column("kind", "u8", "id", "of the memory", words=KINDS),
        Column("major", "u8", "count", "1 = the faults read from a disk"),
        Column("faults", "i64", "count", "page faults; of a sample each stands for as many as its period"),
        Column("recorded", "i64", "count", "the records that `faults` was counted from; fewer = an estimate"),
        Column("lost", "i64", "count", "records that were lost, in a row of their own"),
        Column("bytes", "i64", "count", "a page for each of `faults`", unit="bytes"),
        Column("resident_bytes", "i64", "count", "in memory at a snapshot in that interval", unit="bytes"),
        Column("private_bytes", "i64", "count", "the part of them that no other process maps", unit="bytes"),
        Column("looks", "i64", "count", "snapshots of a process that these two are the sums of"),
    ),
    about="page faults and resident pages by second and what caused them",
)
OTHERS, LOST = "(others)", "(lost)"
_KEYS = ("host", "second", "container_id", "process", "file", "function", "kind", "major")
_SUMS = ("faults", "recorded", "lost", "resident", "private", "looks")
_FAULTS, _RECORDED, _LOST, _RESIDENT, _PRIVATE, _LOOKS = range(len(_SUMS))
#: Rows that are held before equal ones are added up.
_HELD = 1 << 18
#: Keys of an unfinished interval, for each that it will have: what is rare by then is counted among the others.
_SPARE = 16
_PROCESSES = 1 << 16
_FOREVER = 1 << 62


def whole_seconds(seconds: float) -> int:
    """The length of an interval. Raises UsageError unless it is a whole number of seconds that divides a day."""
    if seconds < 1 or seconds != int(seconds) or 86_400 % int(seconds):
        raise UsageError(f"{seconds:g} s are no interval of a rollup", "take a part of a day in whole seconds: 1s, 1m")
    return int(seconds)


class _Rows(NamedTuple):
    """Rows of keys, i64 (n, len(_KEYS)), and sums, i64 (n, len(_SUMS))."""

    keys: NDArray[np.int64]
    sums: NDArray[np.int64]


class Rollup:
    """Adds up a trace's faults and snapshots by interval and key. Only one thread at a time may add.

    The largest keys of an interval are kept, by bytes; the others add up in rows named `(others)`, by kind of memory
    and by whether they read from a disk. So the sums of all rows are those of the trace.

    Args:
        info: the description of the trace: its clock, hosts, page size and the period of its sample.
        symbolizer: names functions, and learns the mappings that are added here; None = none are named.
        seconds: the length of an interval; midnight begins one.
        limit: the keys of an interval.

    Attributes:
        strings: the dictionary that the codes of its rows point into.
        lost: the records that batches said were lost.
    """

    def __init__(
        self, info: TraceInfo, symbolizer: Symbolizer | None = None, *, seconds: int = 1, limit: int = 1000
    ) -> None:
        self.strings = Dictionary()
        self.lost = 0
        self._info, self._symbolizer, self._seconds, self._limit = info, symbolizer, seconds, limit
        self._page = info.page_size or 4096
        self._processes = Processes(_PROCESSES)
        self._names = ProcessNames(_PROCESSES)
        self._containers: dict[int, int] = {}  # number of a process -> code of its container
        self._tree = CallTree()
        self._functions: dict[int, int] = {}  # id of a frame -> code of its name
        self._snapshots: LastSnapshots[list[_Rows]] = LastSnapshots(list, self._look)
        self._looks: dict[tuple[int, int, int], _Rows] = {}  # (interval, host, process) -> the last look in it
        self._held: list[_Rows] = []
        self._n_held = 0
        self._translations: dict[int, tuple[Dictionary, Translation]] = {}
        here = {} if info.recorded else {"name": platform.node()}
        hosts = info.hosts or (str((info.host or here).get("name") or ""),)
        self._hosts = self.strings.codes(hosts)
        self._container_of: dict[int, int] = {0: 0}  # code of a cgroup -> code of its container

    def add(self, batch: Batch) -> None:
        """Takes a batch of any stream; those of page_fault, resident, process, mapping and call_site count."""
        name = batch.schema.name
        if self._symbolizer is not None:
            self._symbolizer.learn(batch)
        if batch.lost:
            self.lost += batch.lost
            self.lose(batch.window[0], batch.lost, int(batch["host"][0]) if "host" in batch and len(batch) else 0)
        if not len(batch):
            return
        if name == PAGE_FAULT.name:
            self._hold(self._faults(batch))
        elif name == PROCESS.name:
            self._learn(batch)
        elif name == RESIDENT_PAGES.name:
            self._resident(batch)
        else:
            self._tree.learn(batch)

    def lose(self, time_ns: int, records: int, host: int = 0) -> None:
        """Counts records that were lost at a time on the records' clock, by a host of a merged trace."""
        code = self.strings.code(LOST)
        lost_by = int(self._host_codes(np.array([host]))[0])
        keys = [lost_by, int(self._interval(np.array([time_ns], np.uint64))[0]), 0, code, code, code, 0, 0]
        sums = [0] * len(_SUMS)
        sums[_LOST] = records
        self._hold(_Rows(np.array([keys], np.int64), np.array([sums], np.int64)))

    def take(self, before_ns: int | None = None) -> Batch:
        """The rows of the intervals that ended before a time on the records' clock, which are forgotten here.

        Args:
            before_ns: that time; None = all.

        Returns:
            A batch of ROLLUP in the order of interval and bytes.
        """
        end = _FOREVER if before_ns is None else int(self._interval(np.array([before_ns], np.uint64))[0])
        self._settle_looks(end)
        self._settle(self._limit)
        rows = self._held[0]
        done = rows.keys[:, 1] < end
        self._held = [_Rows(rows.keys[~done], rows.sums[~done])]
        self._n_held = len(self._held[0].keys)
        keys, sums = rows.keys[done], rows.sums[done]
        order = np.lexsort((-_size(sums, self._page), keys[:, 1], keys[:, 0]))
        keys, sums = keys[order], sums[order]
        found = {name: keys[:, at] for at, name in enumerate(_KEYS)}
        found |= {"faults": sums[:, _FAULTS], "recorded": sums[:, _RECORDED], "lost": sums[:, _LOST]}
        found |= {"bytes": sums[:, _FAULTS] * self._page}
        found |= {"resident_bytes": sums[:, _RESIDENT], "private_bytes": sums[:, _PRIVATE], "looks": sums[:, _LOOKS]}
        typed = {c.name: found[c.name].astype({"u8": "|u1", "u32": "<u4"}.get(c.type, "<i8")) for c in ROLLUP.columns}
        return Batch(ROLLUP, typed, strings=self.strings, rows=len(keys))

    # -- what arrives ----------------------------------------------------------------------------------------------

    def _faults(self, batch: Batch) -> _Rows:
        n, absent = len(batch), np.zeros(len(batch), np.uint32)
        times = batch.columns.get("time_ns", np.full(n, batch.window[1], np.uint64))
        processes = self._processes.numbers(batch.columns.get("host"), batch["pid"])
        cgroups = batch.columns.get("cgroup", absent)
        columns = [
            batch.columns.get("host", absent),
            self._interval(times),
            cgroups,
            processes.astype(np.int64),
            batch.columns.get("file", absent),
            self._called(batch),
            batch.columns.get("kind", absent),
            (batch["flags"] & FAULT_MAJOR).astype(np.uint8),
        ]
        rows, of = distinct(*columns)
        weights = batch.columns.get("sampled")
        counts = np.bincount(of, minlength=len(rows))
        sums = np.zeros((len(rows), len(_SUMS)), np.int64)
        sums[:, _RECORDED] = counts
        sums[:, _FAULTS] = counts * self._info.sampled if weights is None else np.bincount(of, weights, len(rows))
        keys = np.stack([column[rows].astype(np.int64) for column in columns], axis=1)
        names = self._translation(batch.strings)
        keys[:, 0] = self._host_codes(keys[:, 0])
        keys[:, 2] = self._container_codes(batch.strings, keys[:, 2])
        self._containers.update(zip(keys[:, 3].tolist(), keys[:, 2].tolist(), strict=True))
        while len(self._containers) > _PROCESSES:
            del self._containers[next(iter(self._containers))]
        keys[:, 3] = self._name_codes(keys[:, 3])
        keys[:, 4] = names(keys[:, 4])
        return _Rows(keys, sums)

    def _called(self, batch: Batch) -> NDArray[np.uint32]:
        """Of each fault the code of the function of its Python frame, else of its instruction."""
        found = np.zeros(len(batch), np.uint32)
        if self._symbolizer is not None:
            index, places = self._symbolizer.coded(batch, "pc", "pc_mapping", "pc_file")
            codes = self.strings.codes(label_of(place, "function") for place in places)
            found = np.array(codes or [0], np.uint32)[index]
        if "stack" in batch and len(self._tree):
            leaves = self._tree.known(batch["stack"])
            rows, of = distinct(leaves)
            codes = [self._frame(leaf) for leaf in leaves[rows].tolist()]
            named = np.array(codes, np.uint32)[of]
            found = np.where(named != 0, named, found)
        return found

    def _frame(self, leaf: int) -> int:
        """The code of a frame's function and source file; 0 of none."""
        known = self._functions.get(leaf)
        if known is None:
            text, column = self._tree.text, self._tree.column
            function, file = text(int(column("function")[leaf])), text(int(column("file")[leaf]))
            known = self.strings.code(f"{function} {short_path(file)}".rstrip()) if leaf and function else 0
            self._functions[leaf] = known
        return known

    def _learn(self, batch: Batch) -> None:
        hosts, absent = batch.columns.get("host"), np.zeros(len(batch), np.uint32)
        whose = self._processes.numbers(hosts, batch["pid"])
        parents = self._processes.numbers(hosts, batch["ppid"])
        names = self._translation(batch.strings)(batch.columns.get("name", absent))
        self._names.learn(whose, parents, batch["tid"], batch["tid"] == batch["pid"], batch["event"], names)

    def _resident(self, batch: Batch) -> None:
        self._snapshots.add(batch)
        one = batch.snapshot
        if one is None or not one.last:
            return
        whole = self._snapshots.whole(one.host, one.pid)
        if whole is None or whole[0] != one.time_ns:
            return  # a part of it is missing
        number = self._processes.number(one.host, one.pid)
        interval = int(self._interval(np.array([one.time_ns], np.uint64))[0])
        parts = [*whole[1], _nothing()]
        rows = _added(np.concatenate([part.keys for part in parts]), np.concatenate([part.sums for part in parts]))
        rows.sums[:, _LOOKS] = 1
        rows.keys[:, 0] = self._host_codes(np.full(len(rows.keys), one.host))
        rows.keys[:, 1] = interval
        rows.keys[:, 2] = self._containers.get(number, 0)
        rows.keys[:, 3] = self._names.code(number)
        self._settle_looks(interval)
        self._looks[interval, one.host, number] = rows

    def _look(self, parts: list[_Rows], batch: Batch) -> None:
        """Counts the resident rows of a part of a snapshot by file and kind."""
        n, absent = len(batch), np.zeros(len(batch), np.uint32)
        columns = [batch.columns.get("file", absent), batch.columns.get("kind", absent)]
        rows, of = distinct(*columns)
        pages = batch["pages"].astype(np.int64) * self._page
        private = pages * ((batch["flags"] & PAGE_EXCLUSIVE) != 0) if "flags" in batch else np.zeros(n, np.int64)
        keys, sums = np.zeros((len(rows), len(_KEYS)), np.int64), np.zeros((len(rows), len(_SUMS)), np.int64)
        keys[:, 4] = self._translation(batch.strings)(columns[0][rows])
        keys[:, 6] = columns[1][rows]
        np.add.at(sums[:, _RESIDENT], of, pages)
        np.add.at(sums[:, _PRIVATE], of, private)
        parts.append(_Rows(keys, sums))

    # -- names -----------------------------------------------------------------------------------------------------

    def _interval(self, times: NDArray[Any]) -> NDArray[np.int64]:
        """The seconds since 1970 at which the intervals of these times begin, shape (n,)."""
        if not len(times):
            return np.zeros(0, np.int64)
        offset = self._info.clock.offset(int(times[0]))
        seconds = (times.astype(np.int64) + offset) // 1_000_000_000
        found: NDArray[np.int64] = seconds - seconds % self._seconds
        return found

    def _translation(self, strings: Dictionary) -> Translation:
        known = self._translations.get(id(strings))
        if known is None:
            known = self._translations[id(strings)] = strings, Translation(strings, self.strings)
        return known[1]

    def _host_codes(self, hosts: NDArray[Any]) -> NDArray[np.int64]:
        names = np.array([*self._hosts, 0], np.int64)  # a host that the file does not name has none
        codes: NDArray[np.int64] = names[np.minimum(hosts, len(names) - 1)]
        return codes

    def _name_codes(self, processes: NDArray[np.int64]) -> NDArray[np.int64]:
        rows, of = distinct(processes)
        codes: NDArray[np.int64] = np.array([self._names.code(n) for n in processes[rows].tolist()], np.int64)[of]
        return codes

    def _container_codes(self, strings: Dictionary, cgroups: NDArray[np.int64]) -> NDArray[np.int64]:
        codes = self._translation(strings)(cgroups)
        return np.array([self._container(code) for code in codes.tolist()], np.int64)

    def _container(self, cgroup: int) -> int:
        known = self._container_of.get(cgroup)
        if known is None:
            known = self._container_of[cgroup] = self.strings.code(container_id(self.strings[cgroup]))
        return known

    # -- sums ------------------------------------------------------------------------------------------------------

    def _hold(self, rows: _Rows) -> None:
        self._held.append(rows)
        self._n_held += len(rows.keys)
        if self._n_held > _HELD:
            self._settle(self._limit * _SPARE)

    def _settle_looks(self, before: int) -> None:
        """Counts the last look at each process in the intervals before one: of two looks in one, the second stands."""
        for key in [key for key in self._looks if key[0] < before]:
            self._hold(self._looks.pop(key))

    def _settle(self, limit: int) -> None:
        """Adds up equal rows, and the smallest of each interval with more than `limit` of them."""
        rows = [*self._held, _nothing()]
        keys, sums = _added(np.concatenate([one.keys for one in rows]), np.concatenate([one.sums for one in rows]))
        others = self.strings.code(OTHERS)
        unranked = (keys[:, 3] == others) | (sums[:, _LOST] != 0)
        order = np.lexsort((-_size(sums, self._page), unranked, keys[:, 1], keys[:, 0]))
        keys, sums = keys[order], sums[order]
        folded = (_rank(keys) >= limit) & ~unranked[order]
        if folded.any():
            keys[folded, 2:6] = others
            keys, sums = _added(keys, sums)
        self._held, self._n_held = [_Rows(keys, sums)], len(keys)


def _nothing() -> _Rows:
    return _Rows(np.zeros((0, len(_KEYS)), np.int64), np.zeros((0, len(_SUMS)), np.int64))


def _size(sums: NDArray[np.int64], page: int) -> NDArray[np.int64]:
    """By what rows are ranked: their bytes, of faults or resident ones."""
    return np.maximum(sums[:, _FAULTS] * page, sums[:, _RESIDENT])


def _rank(keys: NDArray[np.int64]) -> NDArray[np.intp]:
    """The place of each row among those of its host and interval, which stand together."""
    new = np.ones(len(keys), np.bool_)
    new[1:] = (keys[1:, :2] != keys[:-1, :2]).any(axis=1)
    begins = np.flatnonzero(new)
    place: NDArray[np.intp] = np.arange(len(keys)) - np.repeat(begins, np.diff(begins, append=len(keys)))
    return place


def _added(keys: NDArray[np.int64], sums: NDArray[np.int64]) -> _Rows:
    """The distinct keys, with the sums of equal ones."""
    rows, of = distinct(*keys.T)
    added = np.zeros((len(rows), sums.shape[1]), np.int64)
    np.add.at(added, of, sums)
    return _Rows(keys[rows], added)
