"""Composition: the resident memory of processes at a moment, the owner of each page, and its sums by cell of a cube."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace import schema
from wstrace.analysis.arrival import History, Owners, PageRows, PageSize
from wstrace.analysis.cube import Cube
from wstrace.analysis.dimensions import Labels, Row, dimensions_of, joined, rows_of
from wstrace.analysis.faults import FaultRows
from wstrace.analysis.filter import Filter, kind_numbers
from wstrace.analysis.inputs import LEFT_OUT, Inputs, Wanted, pages_of, read_all
from wstrace.analysis.losses import LAST_PAGE, key_of
from wstrace.analysis.names import names_of
from wstrace.analysis.own import OwnRule
from wstrace.analysis.tally import combinations, distinct
from wstrace.batch import Batch, Columns
from wstrace.ledger import OF_FILES
from wstrace.table import Recorded

#: Pages of which the owners are searched at once: what that needs beside the result stays below 20 MiB.
_AT_ONCE = 1 << 17
#: Without a record of each of these, a fault may have been on what an address held before.
_NEEDED = (schema.LOSS_UNMAPPED, schema.LOSS_REPLACED, schema.LOSS_DISCARDED, schema.LOSS_MOVED)
#: Faults of each process without a record that are those of its exec, or of what it read at its start.
_OF_EXECS = 16


class Past:
    """The faults of a trace, read once for all the moments that are wanted.

    Args:
        trace: the trace. moments: see inputs.read_all().
        by: dimensions, where any needs more than the usual keys of a cube.
        chosen: which faults and pages count; None = all. rule: decides which source files are the program's own.

    Attributes:
        inputs: what was read, for each moment. cube: the cells of faults and pages.
        seen: the faults before the filter.
        copyable: whether each recorded fault is on a page that a write after a fork copies.
        lost: records that the trace lacks. stacks_lost: sampled stacks that it lacks.
        assumed: the kinds of losses that were not recorded, in words.
        sampled: one fault out of so many was recorded.
    """

    def __init__(self, trace: Recorded, moments: Sequence[Wanted], *, by: Sequence[str] = (),
                 chosen: Filter | None = None, rule: OwnRule | None = None) -> None:  # fmt: skip
        self._trace, self.chosen = trace, chosen or Filter()
        names = names_of(trace.info, trace.strings, rule)
        self.cube = Cube(dimensions_of(by).values(), names=names, limit=1 << 22)
        self.inputs, self.seen = read_all(trace, moments, self.cube, self.chosen)
        inputs, ledger = self.inputs[0], trace.ledger
        self.lost, self.stacks_lost, self.sampled = ledger.lost, ledger.get("stacks_lost"), trace.info.sampled
        recorded = set(trace.info.content_losses)
        self.assumed = [schema.LOSS_EVENTS[event] for event in _NEEDED if schema.LOSS_EVENTS[event] not in recorded]
        self._mappings = names.symbolizer.mappings
        (flags,) = self._mappings.columns(inputs.faults["mapping"], "flags")
        self._kind = kind = (flags >> schema.KIND_SHIFT & 15).astype(np.uint8)
        private = (flags & schema.MAP_SHARED) == 0
        self.copyable = np.isin(kind, (schema.KIND_ANON, schema.KIND_HEAP, schema.KIND_STACK)) & private
        self.copyable |= (kind == schema.KIND_FILE) & private & ((flags & schema.MAP_WRITE) != 0)
        self._joined: dict[tuple[str, ...], Labels] = {}

    @cached_property
    def history(self) -> History:
        """The faults and losses, and the owners of pages by them. It takes the columns that nothing else needs."""
        inputs, columns, trace = self.inputs[0], self.inputs[0].faults, self._trace
        # of its program: equal for faults with the same stack, or the same instruction where they have none
        place = np.where(columns["stack"] != 0, columns["stack"], ~columns.pop("pc").astype(np.uint32))
        size = PageSize.of(inputs.page_size, trace.info.extra)
        span = np.zeros(len(place), np.uint8)
        for power in range(1, size.table + 1):
            span[columns["page_size"] == inputs.page_size << power] = power
        del columns["page_size"]
        rows = FaultRows(columns["key"], columns["time_ns"], columns["flags"], self._kind, place, span)
        # The kernel accounts for faults without a record where it brings pages itself: direct I/O, a write by another
        # task (mm_account_fault() in mm/memory.c).
        mapped, ids, usage, counted = None, columns.pop("mapping"), trace.info.usage.faults, trace.ledger.get("counted")
        if usage and counted and usage - counted > _OF_EXECS * len(inputs.pids):
            (mapped,) = self._mappings.columns(ids, "time_ns")
        seen = (part for one in self.inputs for part in page_rows(one))
        return History(rows, self.copyable, inputs.losses, inputs.ends, seen, self._before(),
                       size=size, mapped=mapped)  # fmt: skip

    @cached_property
    def incomplete(self) -> str:
        """What the file of the trace lacks besides records, and what is not counted, in words."""
        info, uncounted = self._trace.info, self.history.copies.uncounted
        unread = "parts of the file cannot be read" if any(map(self._trace.ledger.get, OF_FILES)) else ""
        copies = f"what {uncounted:,} processes copied is not counted: they forked too often, with too many pages"
        return "; ".join(filter(None, (info.incomplete or unread, copies * bool(uncounted))))

    def labels(self, *by: str) -> Labels:
        """The labels of all cells by these dimensions together. Raises UsageError."""
        if by not in self._joined or len(self._joined[by].of) != len(self.cube):
            self._joined[by] = joined(by, self.cube)
        return self._joined[by]

    def _before(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The keys and times of pages, not of files, that processes had before the trace in which they forked."""
        losses, runs = self.inputs[0].losses, self.inputs[0].before
        parents = losses.other[losses.are_forks]
        wanted = np.isin(runs["space"], parents) & ((runs["flags"] & schema.PAGE_FILE) == 0)
        runs = {name: column[wanted] for name, column in runs.items()}
        run, keys = keys_of(runs, self.inputs[0].page_size)
        return keys, runs["time"][run]


def page_rows(inputs: Any) -> Iterator[PageRows]:
    """The resident pages, _AT_ONCE at a time, as a large process has millions; at least one part."""
    runs, shift = inputs.runs, np.uint64(inputs.page_size.bit_length() - 1)
    mappings = inputs.names.symbolizer.mappings
    *place, flags = mappings.columns(runs["mapping"], "start", "end", "offset", "flags")
    low, high, offset = (column >> shift for column in place)
    noticed = (
        (flags & schema.MAP_WRITE != 0)
        & (flags & schema.MAP_SHARED != 0)
        & (flags >> schema.KIND_SHIFT & 15 == schema.KIND_FILE)
    )
    columns = runs["time"], (runs["flags"] & schema.PAGE_FILE) != 0, low, high, offset, noticed
    for begin in range(0, max(int(runs["pages"].sum(dtype=np.int64)), 1), _AT_ONCE):
        run, key = keys_of(runs, inputs.page_size, slice(begin, begin + _AT_ONCE))
        yield PageRows(key, *(column[run] for column in columns))


def keys_of(runs: Columns, page_size: int, part: slice = slice(None)) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Of each page of a part of resident runs its run, and its key, ascending."""
    run, number = pages_of(runs, part)
    first = key_of(runs["space"], runs["start"] >> np.uint64(page_size.bit_length() - 1))
    keys = first[run] + number.astype(np.uint64)
    last = first | LAST_PAGE
    if (first + runs["pages"].astype(np.uint64) > last + np.uint64(1)).any():
        keys = np.minimum(keys, last[run])  # a damaged file's run past the last address is no other process's
    return run, keys


class Composition:
    """The resident pages of a trace's processes at a moment, each with the fault that made it arrive.

    Args:
        trace: the trace. at: see Snapshots.at().
        past: what is known of the trace at several moments, of which this is the one with that number; None = it is
            read for this one.
        by, chosen: see Past.

    Attributes:
        inputs: what was read. past: what does not depend on the moment. history: the faults. found: the owners of the
            pages.
        run: of each resident page its row in `inputs.runs`.
        loaded, loader: the pages that their owner copied from another process, and the fault that had loaded each.
        part: of each resident page, how much of it counts for its process, so that it counts once.
        page_cells: of each resident page its cell in the cube; LEFT_OUT = a filter left it out.
        processes: how many have resident pages. rss: resident bytes, of several processes the sum of what each has, as
            far as the filter lets it through.
    """

    def __init__(self, trace: Recorded, at: str | int = "exit", *, past: Past | None = None, number: int = 0,
                 by: Sequence[str] = (), chosen: Filter | None = None) -> None:  # fmt: skip
        self.trace, self.strings, self.info = trace, trace.strings, trace.info
        self.past = past = past or Past(trace, ((at, chosen.pids if chosen else ()),), by=by, chosen=chosen)
        self.inputs, self.history = past.inputs[number], past.history
        inputs, lossy = self.inputs, bool(past.lost or past.incomplete)
        self.page_size, self.run = inputs.page_size, pages_of(inputs.runs)[0]
        began = np.zeros(len(inputs.pids), np.bool_)
        began[inputs.began] = True
        began[inputs.descend_from_before()] = False
        parts = [self.history.owners(part, from_before=lambda spaces: ~began[spaces], lossy=lossy)
                 for part in page_rows(inputs)]  # fmt: skip
        loaded = [self.history.loaders(*one) for one in zip(page_rows(inputs), parts, strict=True)]
        self.loaded = np.concatenate([rows + number * _AT_ONCE for number, (rows, _) in enumerate(loaded)])
        self.loader = np.concatenate([faults for _, faults in loaded])
        self.found = Owners(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        self.found.estimated[:] |= bool(past.assumed) & (self.found.fault >= 0)
        self._count_pages()

    @property
    def complete(self) -> bool:
        """Whether nothing is missing that could make a row's bytes another row's."""
        past = self.past
        return not (past.lost or past.incomplete or past.stacks_lost or past.assumed or past.sampled > 1)

    @cached_property
    def owner(self) -> NDArray[Any]:
        """Of each resident page the row of its owner in `inputs.faults`, -1 = not known."""
        return np.append(self.history.faults.order, -1)[self.found.fault]

    @cached_property
    def gone_faults(self) -> NDArray[np.bool_]:
        """Of each recorded fault, whether its page arrived by it and is no longer resident."""
        faults, found = self.history.faults, np.zeros(len(self.fault_cells), np.bool_)
        found[faults.order[faults.brings]] = True
        found[self.owner[self.owner >= 0]] = False
        return found

    @cached_property
    def origin_ns(self) -> int:
        """The time that the seconds of reports count from: the beginning of the trace, else the first fault."""
        times = self.inputs.faults["time_ns"]
        return self.info.started_ns or int(times.min(initial=np.iinfo(np.uint64).max) if len(times) else 0)

    def name_of(self, space: int) -> str:
        """`python3 (4711)`."""
        return f"{self.program_of(space)} ({self.inputs.pids[space]})"

    def program_of(self, space: int) -> str:
        """`python3`."""
        return self.inputs.names.name(int(self.inputs.processes[space]))

    def column(self, name: str) -> NDArray[Any]:
        """A column of the runs, of each resident page."""
        values: NDArray[Any] = self.inputs.runs[name][self.run]
        return values

    @property
    def fault_cells(self) -> NDArray[np.uint32]:
        """Of each recorded fault its cell in the cube."""
        return self.inputs.faults["cell"]

    @cached_property
    def sums(self) -> dict[str, NDArray[np.int64]]:
        """measure -> its sum of each cell."""
        cube, faults = self.past.cube, self.history.faults
        found = {name: cube.measure(name).copy() for name in cube.sums}
        for name, one in self._page_sums.items():  # another moment may have added cells since
            found[name] = np.append(one, np.zeros(len(cube) - len(one), np.int64))
        for name, rows in (("brought", np.flatnonzero(self.gone_faults)), ("again", faults.order[faults.again()]),
                           ("written", faults.order[faults.written()])):  # fmt: skip
            found[name] = found.get(name, 0) + self.of_faults(rows) * self.page_size
        return found

    def of_faults(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """How many faults those of these that are chosen stand for, by cell. rows: of recorded faults, each once."""
        each, rows = self.inputs.faults.get("sampled"), rows[self.inputs.faults["chosen"][rows]]
        weights = None if each is None else each[rows]
        return np.bincount(self.fault_cells[rows], weights, len(self.past.cube)).astype(np.int64)

    def rows(self, *by: str, sort: str = "resident") -> list[Row]:
        """The rows by these dimensions together, those with most of a measure first. Raises UsageError."""
        return rows_of(self.past.labels(*by), self.sums, sort)

    def columns(self, *by: str) -> tuple[NDArray[np.intp], dict[str, NDArray[np.float64]]]:
        """The same as columns: the numbers in Past.labels() of the labels that have any sum, and their sums."""
        sums = self.sums
        labels = self.past.labels(*by)
        totals = {name: np.bincount(labels.of[: len(one)], one, len(labels.labels)) for name, one in sums.items()}
        some = np.flatnonzero(sum(totals.values()))
        return some, {name: total[some].astype(np.float64) for name, total in totals.items()}

    def _count_pages(self) -> None:
        """Adds the cells of the resident pages to the cube, and sums the pages by them."""
        cube, chosen, runs, inputs = self.past.cube, self.past.chosen, self.inputs.runs, self.inputs
        owner, kind = self.owner, runs["kind"]
        owner_cell = np.zeros(len(owner), np.uint32)
        owner_cell[owner >= 0] = self.fault_cells[owner[owner >= 0]]
        keep = np.ones(len(owner), np.bool_)
        if chosen.of_faults:
            keep = owner >= 0
            keep[keep] = inputs.faults["chosen"][owner[keep]]
        if chosen.kinds:
            keep &= np.isin(kind, kind_numbers(chosen.kinds))[self.run]
        if chosen.file:
            keep &= chosen.files(runs["file"], self.strings)[self.run]
        exclusive = (runs["flags"] & schema.PAGE_EXCLUSIVE) != 0
        alike, of_run = combinations(runs["space"], kind, runs["file"], exclusive, runs["shares"])
        copied = np.zeros(len(owner), np.bool_)
        copied[self.loaded] = True
        columns: list[NDArray[Any]] = [self.found.estimated, of_run[self.run], owner_cell, self.found.reason, copied]
        of_pages = [one for one in cube.dimensions if one.code is not None and not one.owner]
        columns += [one.code(self._addresses(), cube.names) for one in of_pages if one.code is not None]
        columns = columns if keep.all() else [column[keep] for column in columns]
        first, which = combinations(*columns)
        estimated, run, cell, reason, copies, *codes = (column[first] for column in columns)
        del columns, owner_cell, copied  # of a million pages, 9 MB
        run = alike[run]
        pages = np.bincount(which, minlength=len(first)).astype(np.int64) * self.page_size
        keys: dict[str, Any] = {name: cube.key(name)[cell] for name in cube.keys}
        keys |= {"process": inputs.processes[runs["space"][run]], "file": runs["file"][run], "kind": kind[run],
                 "cgroup": inputs.cgroups[runs["space"][run]], "reason": reason}  # fmt: skip
        keys |= {one.keys[0]: code for one, code in zip(of_pages, codes, strict=True)}
        cells = cube.count(keys, {})
        self.page_cells = np.full(len(owner), LEFT_OUT, np.uint32)
        self.page_cells[keep] = cells[which]
        private, spaces, shares = np.where(exclusive[run], pages, 0), distinct(runs["space"]), runs["shares"]
        pss = None
        if inputs.shares_known and not ((shares[~exclusive] == 255).any() or (shares == 0).any()):
            pss = pages / np.where(exclusive, 1, shares)[run]
        self.processes, self.rss = len(spaces), int(pages.sum())
        alone = self.processes < 2
        self.part = np.broadcast_to(1.0, len(owner)) if alone else 1 / _holders(inputs, exclusive, owner)
        resident = pages
        if not alone:
            share = np.bincount(which, self.part[keep], len(first)) * self.page_size
            resident = _whole(share)  # in all views the same sum, also of what is estimated, which comes last
        amounts = {"resident": resident, "private": private, "shared": pages - private, "brought": pages,
                   "copied": np.where(copies, pages, 0), "estimated": np.where(estimated, resident, 0)}  # fmt: skip
        if len(spaces) > 1:
            amounts["rss"] = pages
            if pss is not None:
                amounts["pss"] = _whole(pss)
        self._page_sums = {name: np.bincount(cells, one, len(cube)).astype(np.int64)
                           for name, one in amounts.items() if len(owner)}  # fmt: skip

    def _addresses(self) -> Batch:
        """The address of each resident page, as the faults on them have it."""
        runs = self.inputs.runs
        run, number = pages_of(runs)
        columns = {name: runs[name][run] for name in ("mapping", "file")}
        columns["va"] = runs["start"][run] + number.astype(np.uint64) * np.uint64(self.page_size)
        return Batch(schema.PAGE_FAULT, columns, strings=self.strings)


def _whole(parts: NDArray[Any]) -> NDArray[np.int64]:
    """The parts of one sum as whole numbers, whose sum is that of the parts in whatever way it is parted."""
    return np.diff(parts.cumsum().round(), prepend=0).astype(np.int64)


def _holders(inputs: Inputs, exclusive: NDArray[np.bool_], owner: NDArray[np.intp]) -> NDArray[np.int64]:
    """Of each resident page how many of these processes have it. exclusive: of each run. owner: of each page.

    A page of several is the same one of a file; or it has the same address and the same fault brought it, as whoever
    copies a page since a fork brings a further one.
    """
    runs, shift = inputs.runs, np.uint64(inputs.page_size.bit_length() - 1)
    names, (run, number) = inputs.names, pages_of(runs)
    start, offset, *file = names.symbolizer.mappings.columns(runs["mapping"], "start", "offset", "dev", "ino")
    of_file = ((runs["flags"] & schema.PAGE_FILE) != 0) & (file[1] != 0)
    first = np.where(of_file, runs["start"] - start + offset, runs["start"]) >> shift
    host = np.array([names.processes.host_and_pid(n)[0] for n in inputs.processes.tolist()], np.int64)[runs["space"]]
    found, shared = np.ones(len(run), np.int64), ~exclusive[run]
    page, by = (first[run] + number.astype(np.uint64))[shared], np.where(of_file[run], -1, owner)[shared]
    run = run[shared]
    _, which = combinations(page, by, *(column[run] for column in (host, *(one * of_file for one in file))))
    found[shared] = np.bincount(which)[which]
    return found
