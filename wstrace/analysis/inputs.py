"""What a composition is computed from: the faults, losses, forks and the resident pages of a trace at a moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace import schema
from wstrace.analysis.copies import Ends
from wstrace.analysis.cube import Cube
from wstrace.analysis.filter import Filter
from wstrace.analysis.losses import Losses, LossRows, key_of
from wstrace.analysis.moments import LAST, Moment, Snapshot, Snapshots
from wstrace.analysis.names import Names, Processes
from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Columns
from wstrace.errors import TraceFileError
from wstrace.table import Recorded

#: A moment, and the processes of which the pages are wanted, () = all; see Snapshots.at().
Wanted = tuple[str | int, Sequence[int]]

#: Faults without times (Windows) have the beginning of their batch's window as time_ns, and its end as `until`, which
#: is left out where every fault has its time.
_FAULT = {"time_ns": "<u8", "until": "<u8", "pid": "<u4", "pc": "<u8", "va": "<u8", "flags": "|u1", "mapping": "<u4",
          "stack": "<u4", "stack_how": "|u1", "tid": "<u4", "cgroup": "<u4", "page_size": "<u4"}  # fmt: skip
#: Further columns that every cube reads.
_COUNTED = ("host", "pc_mapping", "file", "pc_file", "kind", "native_stack", "native_how", "weight", "sampled")
#: The cell of a page that a filter left out.
LEFT_OUT = np.uint32(0xFFFF_FFFF)
_LOSS = {"time_ns": "<u8", "pid": "<u4", "event": "|u1", "start": "<u8", "end": "<u8", "to": "<u8", "other": "<u4"}
_PROCESS = {"time_ns": "<u8", "pid": "<u4", "tid": "<u4", "event": "|u1"}
_RESIDENT = {"start": "<u8", "pages": "<u4", "flags": "<u2", "shares": "|u1", "mapping": "<u4", "file": "<u4",
             "kind": "|u1"}  # fmt: skip
#: Losses of all that a process has: they say in which memory its faults are.
_WHOLE = (schema.LOSS_FORKED, schema.LOSS_PERHAPS_FORKED, schema.LOSS_SHARES, schema.LOSS_EXECUTED)
_SHARERS = 8  # processes in a row that run in each other's memory
NEVER = np.uint64((1 << 64) - 1)


@dataclass(slots=True)
class Inputs:
    """The rows of a trace, with processes as numbers of spaces: positions in `pids`.

    Attributes:
        page_size: bytes.
        pids: of each space, ascending where no pid belongs to several hosts. processes: its number in Names.
        cgroups: of each space the code of the control group that it last faulted in, 0 = not known.
        names: what ids and codes stand for.
        faults: columns of the stream. `space` beside them; `key`, that of the page, `cell`, that of the cube, `chosen`,
            whether the filter lets it through, and sampled only where one of several was recorded.
        losses: of all processes. ends: of processes.
        first_ns, end_ns: of each space the time of its first fault, and of its end; NEVER = there is none.
        began: spaces that began or executed their program in the trace.
        runs: resident runs at the moment, by space and address; `space` and `time` beside the columns.
        before: such runs of the first snapshot of each process that was there before the trace.
        swapped: pages. time_ns: the latest of the snapshots. moment: which it is, in words.
        of_peak: the most that was resident, in bytes, where the moment is the peak.
        unseen: the spaces of processes that ran at the moment, of which there is no snapshot.
    """

    page_size: int
    pids: NDArray[np.int64]
    processes: NDArray[np.uint64]
    cgroups: NDArray[np.uint32]
    names: Names
    faults: Columns
    losses: LossRows
    ends: Ends
    first_ns: NDArray[np.uint64]
    end_ns: NDArray[np.uint64]
    began: NDArray[np.intp]
    runs: Columns
    before: Columns
    swapped: int = 0
    time_ns: int = 0
    moment: str = "exit"
    of_peak: int | None = None
    shares_known: bool = False
    unseen: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))

    def descend_from_before(self) -> NDArray[np.intp]:
        """The spaces that began with the memory of a process that was there before the trace."""
        forks = np.flatnonzero(np.isin(self.losses.event, (schema.LOSS_FORKED, schema.LOSS_PERHAPS_FORKED)))
        found: set[int] = set()
        for child, parent in zip(self.losses.space[forks].tolist(), self.losses.other[forks].tolist(), strict=True):
            if parent in found or parent not in self.began:  # forks are in order of time
                found.add(child)
        return np.array(sorted(found), np.intp)


def read_all(trace: Recorded, moments: Sequence[Wanted], cube: Cube, chosen: Filter) -> tuple[list[Inputs], int]:
    """What compositions at several moments need, and how many faults there are; its faults are counted in a cube.

    All have the same columns but those of the resident pages.
    moments: at least one. cube: counts the faults, and learns the names. chosen: which faults it counts. Raises
    UsageError: there is no such mark, or no snapshot up to that time; TraceFileError: the snapshots of a moment claim
    more pages than are held in memory here.
    """
    processes = cube.names.processes
    for stream in (schema.CALL_SITE, schema.MAPPING, schema.PROCESS):
        for batch in trace.batches(stream.name):
            cube.add(batch)
    rows = _gather(trace.batches(schema.PROCESS.name), _PROCESS, processes)
    lost = _gather(trace.batches(schema.CONTENT_LOSS.name), _LOSS, processes, "other")
    cells, kept, seen = [np.zeros(0, np.uint32)], [np.zeros(0, np.bool_)], [0]
    wanted = _FAULT | ({"sampled": "<u4"} if trace.info.sampled > 1 else {})
    faults = _gather(_faults(trace, cube, chosen, cells, kept, seen), wanted, processes)
    faults["cell"], faults["chosen"] = np.concatenate(cells), np.concatenate(kept)
    if (each := faults.get("sampled")) is not None:  # absent in rows of which each fault was recorded
        faults["sampled"] = np.maximum(each, 1 if each.any() else trace.info.sampled)
    if (faults["until"] == faults["time_ns"]).all():
        del faults["until"]
    snapshots = Snapshots(trace)
    wanted_at = [snapshots.at(*moment) for moment in moments]
    first = snapshots.first(max(moment.until for moment in wanted_at))
    parts = snapshots.parts(trace, {*first, *(one for moment in wanted_at for one in moment.snapshots)}, _RESIDENT)
    number_of = {one: processes.number(*one.process) for one in parts}
    numbers = distinct(np.concatenate([faults["process"], lost["process"], lost["other"], rows["process"],
                                             np.array(list(number_of.values()), np.uint64)]))  # fmt: skip
    for columns in (faults, lost, rows):
        columns["space"] = numbers.searchsorted(columns.pop("process")).astype(np.int32)
    spaces = {one: int(numbers.searchsorted(np.uint64(number))) for one, number in number_of.items()}
    page_size = trace.info.page_size or 4096
    shift = np.uint64(page_size.bit_length() - 1)
    cgroups = _cgroups(faults, len(numbers))
    losses = _losses(lost, numbers, shift)
    del faults["pid"]  # the space replaces it
    _sharers(faults, losses)
    faults["key"] = key_of(faults["space"], faults.pop("va") >> shift)
    own = rows["tid"] == rows["pid"]
    ended = own & (rows["event"] == schema.PROCESS_EXIT)
    began = distinct(rows["space"][own & np.isin(rows["event"], (schema.PROCESS_FORK, schema.PROCESS_EXEC))])
    before = _runs({one: parts[one] for one in first if spaces[one] not in began}, spaces)
    ends = Ends(rows["space"][ended], rows["time_ns"][ended])
    whom = np.array([processes.pid(number) for number in numbers.tolist()], np.int64)
    first_ns, end_ns = (np.full(len(numbers), NEVER) for _ in range(2))
    np.minimum.at(first_ns, faults["space"], faults["time_ns"])
    np.minimum.at(end_ns, ends.space, ends.time)
    found = []
    for (_, pids), moment in zip(moments, wanted_at, strict=True):
        runs = _runs({one: parts[one] for one in moment.snapshots}, spaces)
        found.append(Inputs(
            page_size,
            whom,
            numbers,
            cgroups,
            cube.names,
            faults,
            losses,
            ends,
            first_ns,
            end_ns,
            began,
            runs,
            before,
            moment.swapped,
            int(runs["time"].max(initial=0)),
            moment.words,
            moment.of_peak,
            any("shares" in part for one in moment.snapshots for part in parts[one]),
            np.zeros(0, np.intp) if pids else _unseen(moment, runs, first_ns, end_ns),
        ))  # fmt: skip
    return found, sum(seen)


def _faults(trace: Recorded, cube: Cube, chosen: Filter, cells: list[NDArray[np.uint32]],
            kept: list[NDArray[np.bool_]], seen: list[int]) -> Iterator[Batch]:  # fmt: skip
    """The batches of faults; adds the cell of each fault, whether it is chosen, and how many there are."""
    more = [key for key in cube.keys if schema.PAGE_FAULT.column(key) is not None]
    chosen.origin_ns = chosen.origin_ns or trace.info.started_ns
    for batch in trace.batches(schema.PAGE_FAULT.name, tuple(dict.fromkeys((*_FAULT, *_COUNTED, *more)))):
        if "pid" not in batch or not len(batch):  # of which process these rows are is not known
            continue
        lacking = schema.PAGE_FAULT.always - batch.columns.keys()  # of a damaged file
        batch = batch.with_columns({name: _without(batch, name, _FAULT[name]) for name in lacking})
        each = batch.columns.get("sampled")
        seen.append(len(batch) if each is None else int(np.maximum(each, 1).sum()))
        keep = chosen.chosen(batch)
        cells.append(cube.faults(cube.names.recoded(batch), None if keep.all() else keep))
        kept.append(keep)
        yield batch


def _cgroups(faults: Columns, n: int) -> NDArray[np.uint32]:
    """Of each space the code of the control group of its last fault; 0 = not known."""
    of_faults, found = faults.pop("cgroup"), np.zeros(n, np.uint32)
    known = np.flatnonzero(of_faults)
    by_time = known[np.argsort(faults["time_ns"][known], kind="stable")]
    found[faults["space"][by_time]] = of_faults[by_time]
    return found


def _gather(batches: Iterable[Batch], wanted: dict[str, str], processes: Processes, *others: str) -> Columns:
    """The columns of a stream, each as one array; `process` = the numbers of the pids. Absent ones are 0."""
    found = {name: np.zeros(0, np.uint64 if name in others else kind) for name, kind in wanted.items()}
    found["process"], n = np.zeros(0, np.uint64), 0
    for batch in batches:
        if "pid" in wanted and "pid" not in batch:
            continue  # of which process these rows are is not known
        hosts = batch.columns.get("host")
        for name, kind in wanted.items():
            column = batch[name] if name in batch else _without(batch, name, kind)
            _put(found, name, n, processes.numbers(hosts, column) if name in others else column)
        if "pid" in wanted:
            _put(found, "process", n, processes.numbers(hosts, batch["pid"]))
        n += len(batch)
    return {name: column[:n] for name, column in found.items()}


def _put(columns: Columns, name: str, at: int, rows: NDArray[Any]) -> None:
    """Puts rows into a column from `at` on; it grows fourfold: parts that are joined are there twice."""
    held, end = columns[name], at + len(rows)
    if end > len(held):
        columns[name] = np.empty(max(4 * len(held), end), held.dtype)
        columns[name][:at] = held[:at]
    columns[name][at:end] = rows


def _without(batch: Batch, name: str, kind: str) -> NDArray[Any]:
    """A column that a batch lacks."""
    if name == "until" and "time_ns" in batch:
        return batch["time_ns"]
    begin, end = batch.window
    return np.full(len(batch), {"time_ns": begin, "until": end}.get(name, 0), kind)


def _losses(lost: Columns, numbers: NDArray[Any], shift: np.uint64) -> LossRows:
    order = np.argsort(lost["time_ns"], kind="stable")
    columns = {name: column[order] for name, column in lost.items()}
    one = np.uint64(1)
    first = columns["start"] >> shift
    last = (columns["end"] >> shift) + ((columns["end"] & ((one << shift) - one)) != 0)
    last = np.maximum(first, last)  # a file may say anything: a range that ends before it begins is empty
    return LossRows(columns["time_ns"], columns["space"], columns["event"], first, last,
                    columns["to"] >> shift, numbers.searchsorted(columns["other"]).astype(np.intp))  # fmt: skip


def _sharers(faults: Columns, losses: LossRows) -> None:
    """Gives the faults of processes that ran in another one's memory (vfork) to that one's space."""
    if not (losses.event == schema.LOSS_SHARES).any():
        return
    whole = np.isin(losses.event, _WHOLE)
    spaces = Losses(losses.take(whole))
    limits = spaces.upto(faults["time_ns"])
    for _ in range(_SHARERS):
        last = spaces.latest(key_of(faults["space"], np.zeros(len(limits), np.uint64)), limits)
        shared = np.flatnonzero(spaces.event(last) == schema.LOSS_SHARES)
        if not len(shared):
            return
        faults["space"][shared] = spaces.rows.other[spaces.row[last[shared]]]


def _unseen(moment: Moment, runs: Columns, first: NDArray[np.uint64], end: NDArray[np.uint64]) -> NDArray[np.intp]:
    """The spaces of processes that ran at the moment, or up to it for the last snapshots, and have none in it."""
    there = first <= moment.until
    if moment.snapshots and moment.words not in LAST:
        there &= end > moment.until
    there[runs["space"]] = False
    return np.flatnonzero(there & (first < NEVER))


def _runs(parts: Mapping[Snapshot, Sequence[Batch]], spaces: Mapping[Snapshot, int]) -> Columns:
    """The resident runs of snapshots, by space and address. Raises TraceFileError past MOST_PAGES."""
    found: dict[str, list[NDArray[Any]]] = {name: [np.zeros(0, kind)] for name, kind in _RESIDENT.items()}
    found |= {"space": [np.zeros(0, np.intp)], "time": [np.zeros(0, np.uint64)]}
    for one, part in ((one, part) for one, some in parts.items() for part in some):
        for name, kind in _RESIDENT.items():
            absent = 255 if name == "shares" else 0
            found[name].append(part.columns.get(name, np.full(len(part), absent, kind)))
        found["space"].append(np.full(len(part), spaces[one], np.intp))
        found["time"].append(np.full(len(part), one.time_ns, np.uint64))
    columns = {name: np.concatenate(arrays) for name, arrays in found.items()}
    if (pages := int(columns["pages"].sum(dtype=np.uint64))) > schema.MOST_PAGES:
        raise TraceFileError(
            f"the trace claims {pages:,} resident pages, more than the {schema.MOST_PAGES:,} that can be attributed",
            "choose processes with --pid",
        )
    order = np.lexsort((columns["start"], columns["space"]))
    return {name: column[order] for name, column in columns.items()}


def pages_of(runs: Columns, part: slice = slice(None)) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Of each page of a part of all, its run, and its number among the pages of the run."""
    ends = np.cumsum(runs["pages"], dtype=np.int64)
    begin, end, _ = part.indices(int(ends.max(initial=0)))
    first = int(ends.searchsorted(begin, "right"))
    counts = np.diff(np.minimum(ends[first : int(ends.searchsorted(end)) + 1], end), prepend=begin)
    run = np.repeat(np.arange(first, first + len(counts), dtype=np.uint32), counts)
    return run, np.arange(begin, end) - (ends - runs["pages"])[run]
