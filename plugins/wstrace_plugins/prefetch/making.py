"""Makes a list from a trace: the pages of files that its processes touched, or had in memory in its snapshots."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import Unavailable, UsageError
from wstrace.schema import MAPPING, NOT_RESIDENT, PAGE_FAULT, RESIDENT_PAGES
from wstrace.text import plural
from wstrace_plugins.prefetch.backend import Backend, NotRegular
from wstrace_plugins.prefetch.start_list import GAP, File, Range

if TYPE_CHECKING:
    from wstrace.trace import Trace

#: A fault brings pages of its file around it that are in the page cache, from the same aligned part of the file: a page
#: of a snapshot without a fault of its own came with the first fault in that part (Linux, fault_around_bytes).
_AROUND = 64 << 10
_NEVER = np.uint64((1 << 64) - 1)
_MOST_PAGES = 1 << 24  # 64 GiB in pages of 4 KiB; a damaged trace may claim any number, and each takes 24 bytes
_REPLACED, _MISSING = "changed or replaced since the trace", "not here any more, or not readable"


@dataclass(slots=True)
class Made:
    """A list and what it lacks.

    left_out: of each reason the number of files whose pages the trace has and the list has not. processes: with faults;
    unseen: those of them that no snapshot shows, of which the list lacks what came without a fault.
    """

    ranges: list[Range]
    left_out: dict[str, int] = field(default_factory=dict)
    processes: int = 0
    unseen: int = 0

    @property
    def note(self) -> str:
        """`left out: 2 files changed or replaced since the trace`; "" = nothing is lacking."""
        why = ", ".join(f"{plural(n, 'file')} {why}" for why, n in sorted(self.left_out.items()))
        unseen = f"{self.unseen:,} of {self.processes:,} processes without a snapshot: of these only what faulted"
        return "; ".join([f"left out: {why}"] * bool(why) + [unseen] * bool(self.unseen))


@dataclass(slots=True)
class _Pages:
    """Numbers of pages of one file with the time of their first touch in ns, each (n,); 2^64 - 1 = not known."""

    page: NDArray[np.int64]
    time_ns: NDArray[np.uint64]


def made(trace: Trace, system: Backend, gap: int = GAP) -> Made:
    """The ranges of files that a trace needed, in order of first touch; what has no fault stands behind, by file.

    Args:
        gap: bytes between two pages of a file at most, for them to be one range.

    Raises:
        UsageError: the trace has neither faults nor snapshots; Unavailable: they could not be recorded.
    """
    if not trace.rows.get(PAGE_FAULT.name) and not trace.rows.get(RESIDENT_PAGES.name):
        level = trace.info.level
        if level is not None and level.counts_only:
            raise Unavailable(f"neither page faults nor a snapshot are in the trace: {level.why}", level.remedy)
        raise UsageError(
            "the trace has neither page faults nor a snapshot", "record it with wstrace run -o x.wst -- COMMAND"
        )
    page_size = trace.info.page_size or 4096
    found = Made([])
    faulted, seen = _processes(trace)
    found.processes, found.unseen = len(faulted), len(faulted - seen)
    kept: list[tuple[int, Range]] = []
    for (name, dev, ino, build_id), pages in _touched(trace, page_size).items():
        file = _file_now(trace, system, name, dev, ino, build_id)
        if isinstance(file, str):
            found.left_out[file] = found.left_out.get(file, 0) + 1
            continue
        kept += _ranges(file, _first_touch(pages, page_size), page_size, gap)
    kept.sort(key=lambda one: (one[0], one[1].file.path, one[1].offset))
    found.ranges = [one for _, one in kept]
    return found


def _processes(trace: Trace) -> tuple[set[int], set[int]]:
    """The processes that faulted, and those of which there is a snapshot."""
    faulted: set[int] = set()
    for batch in trace.batches(PAGE_FAULT.name, ("pid",)):
        faulted.update(np.unique(batch["pid"]).tolist() if "pid" in batch else ())
    shown = (batch.snapshot for batch in trace.batches(RESIDENT_PAGES.name, ("start", "pages")))
    return faulted, {one.pid for one in shown if one is not None}


def _touched(trace: Trace, page_size: int) -> dict[tuple[str, int, int, str], _Pages]:
    """The pages of each file, by (name, device, inode, build-id): every fault, and every page of the snapshots."""
    maps = _mappings(trace)
    names = {code: trace.strings[int(code)] for code in np.unique(maps["file"]).tolist()}
    of_file = np.array([names[code].startswith("/") for code in maps["file"].tolist()], np.bool_)
    rows, pages, times = [np.empty(0, np.intp)], [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for batch in trace.batches(PAGE_FAULT.name, ("time_ns", "va", "mapping")):
        if "va" not in batch or "mapping" not in batch:  # a damaged file: which pages these are is not known
            continue
        row, known = _rows(maps["id"], of_file, batch["mapping"])
        offset = batch["va"][known] - maps["start"][row] + maps["offset"][row]
        rows.append(row)
        pages.append((offset // np.uint64(page_size)).astype(np.int64))
        times.append(batch["time_ns"][known] if "time_ns" in batch else np.full(len(row), batch.window[0], np.uint64))
    total = 0
    for batch in trace.batches(RESIDENT_PAGES.name, ("start", "pages", "flags", "mapping")):
        if not {"start", "pages", "mapping"} <= set(batch):
            continue
        row, known = _rows(maps["id"], of_file, batch["mapping"])
        if "flags" in batch:
            there = (batch["flags"][known] & NOT_RESIDENT) == 0
            row, known = row[there], known[there]
        n = batch["pages"][known].astype(np.int64)
        if (total := total + int(n.sum())) > _MOST_PAGES:
            raise UsageError(f"the trace has more than {_MOST_PAGES:,} resident pages of files")
        first = (batch["start"][known] - maps["start"][row] + maps["offset"][row]) // np.uint64(page_size)
        within = np.arange(int(n.sum()), dtype=np.int64) - np.repeat(np.cumsum(n) - n, n)
        rows.append(np.repeat(row, n))
        pages.append(np.repeat(first.astype(np.int64), n) + within)
        times.append(np.full(len(within), _NEVER))
    return _by_file(trace, maps, names, np.concatenate(rows), np.concatenate(pages), np.concatenate(times))


def _mappings(trace: Trace) -> dict[str, NDArray[np.uint64]]:
    """The mappings of the trace, ascending by id."""
    columns = ("id", "start", "offset", "file", "dev", "ino", "build_id")
    parts = [{name: batch[name] if name in batch else np.zeros(len(batch), "<u8") for name in columns}
             for batch in trace.batches(MAPPING.name)]  # fmt: skip
    found = {
        name: np.concatenate([np.empty(0, "<u8"), *(part[name] for part in parts)]).astype("<u8") for name in columns
    }
    _, first = np.unique(found["id"], return_index=True)
    return {name: column[first] for name, column in found.items()}


def _rows(
    ids: NDArray[np.uint64], of_file: NDArray[np.bool_], asked: NDArray[np.uint32]
) -> tuple[NDArray[np.intp], ...]:
    """(rows of mappings, positions of those in `asked`) of what lies in a mapping of a file."""
    if not len(ids):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    row = np.minimum(ids.searchsorted(asked), len(ids) - 1)
    known = np.flatnonzero((ids[row] == asked) & of_file[row])
    return row[known], known


def _by_file(
    trace: Trace,
    maps: dict[str, NDArray[np.uint64]],
    names: dict[int, str],
    row: NDArray[np.intp],
    page: NDArray[np.int64],
    time_ns: NDArray[np.uint64],
) -> dict[tuple[str, int, int, str], _Pages]:
    identity = np.stack([maps[name].astype(np.uint64) for name in ("file", "dev", "ino", "build_id")], axis=1)
    files, of_row = np.unique(identity, axis=0, return_inverse=True)
    of_page = of_row.reshape(-1)[row]
    order = np.argsort(of_page, kind="stable")
    edges = np.searchsorted(of_page[order], np.arange(len(files) + 1))
    found = {}
    for number, (file, dev, ino, build_id) in enumerate(files.tolist()):
        its = order[edges[number] : edges[number + 1]]
        if len(its):
            found[names[file], dev, ino, trace.strings[build_id]] = _Pages(page[its], time_ns[its])
    return found


def _first_touch(pages: _Pages, page_size: int) -> _Pages:
    """Each page once, ascending, with its first time: its own, or that of the part of the file around it."""
    order = np.lexsort((pages.time_ns, pages.page))
    page, first = np.unique(pages.page[order], return_index=True)
    time_ns = pages.time_ns[order][first]
    _, part = np.unique(page // max(_AROUND // page_size, 1), return_inverse=True)
    earliest = np.full(len(page), _NEVER)
    np.minimum.at(earliest, part, time_ns)
    return _Pages(page, np.where(time_ns == _NEVER, earliest[part], time_ns))


def _ranges(file: File, pages: _Pages, page_size: int, gap: int) -> list[tuple[int, Range]]:
    """(time of the first touch, range) of each run of pages, of which two lie `gap` bytes apart at most."""
    inside = (pages.page >= 0) & (pages.page < -(-file.size // page_size))
    page, time_ns = pages.page[inside], pages.time_ns[inside]
    if not len(page):
        return []
    begin = np.concatenate([[0], np.flatnonzero(np.diff(page) - 1 > gap // page_size) + 1])
    last = np.append(begin[1:], len(page)) - 1
    earliest = np.minimum.reduceat(time_ns, begin)
    return [
        (when, Range(file, start, min(end, file.size) - start))
        for when, start, end in zip(
            earliest.tolist(), (page[begin] * page_size).tolist(), ((page[last] + 1) * page_size).tolist(), strict=True
        )
    ]


def _file_now(trace: Trace, system: Backend, name: str, dev: int, ino: int, build_id: str) -> File | str:
    """The file as it is now; or why it cannot be in a list."""
    try:
        path = name.encode("utf-8", "surrogateescape")
        fd = system.open_file(path)
    except NotRegular:
        return "not regular"
    except (OSError, ValueError):
        return _MISSING
    try:
        now = system.stamp(fd, path)
        ended_ns = trace.info.clock.wall(trace.info.ended_ns) if trace.info.ended_ns else now.mtime_ns
        same = system.is_inode(fd, dev, ino) and build_id in ("", now.build_id) and now.mtime_ns <= ended_ns
        return now if same else _REPLACED
    finally:
        os.close(fd)
