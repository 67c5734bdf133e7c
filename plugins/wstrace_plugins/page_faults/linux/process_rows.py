"""The rows of processes and their address spaces that wait to be given, and those of processes that ran before."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.errors import Unavailable
from wstrace.schema import (
    ADDRESS_SPACE,
    CONTENT_LOSS,
    DTYPES,
    KIND_ANON,
    KIND_FILE,
    KIND_HEAP,
    KIND_SHIFT,
    PROCESS,
    PROCESS_NAME,
    PROCESS_SEEN,
    SPACE_MAP,
    SPACE_REPLACE,
    SPACE_UNMAP,
    Schema,
)
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.page_faults.linux.calls import Remaps
from wstrace_plugins.page_faults.linux.content_losses import ContentLosses, SharedSpaces, same_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEAP_WITHIN = 1 << 30  # arch_randomize_brk(): up to 32 MiB above the image on x86-64, 1 GiB on arm64


class Live:
    """A process: its parent, name (code) and threads, where its program's image ends, and whether that image is mapped
    completely.

    Attributes:
        bare: whether the last record about the process was its exec.
        title: that it gave itself since it executed its program, as it was told last.
    """

    __slots__ = ("bare", "image", "image_end", "loaded", "name", "ppid", "threads", "title")

    def __init__(
        self, ppid: int, name: int, threads: set[int], image: int = 0, image_end: int = 0, loaded: bool = False
    ) -> None:
        self.ppid, self.name, self.threads = ppid, name, threads
        self.image, self.image_end, self.loaded = image, image_end, loaded
        self.bare, self.title = False, b""

    def maps_heap(self, start: int, end: int, code: int, kind: int) -> bool:
        """Notes a mapping, and says whether it is the heap although the kernel reports it as //anon.

        At the heap's first growth, brk() sets mm->brk only after calling perf (mm/mmap.c, 6.x).

        Without address randomization the heap begins where .bss ends; execve() maps .bss itself, before the interpreter
        and the vdso (load_elf_binary()).

        Args:
            start, end: its addresses.
            code: the code of its name.
            kind: KIND_*.
        """
        if kind == KIND_FILE:
            if not self.image_end or code == self.image:
                self.image, self.image_end = code, max(self.image_end, end)
            else:
                self.loaded = True
        elif kind == KIND_ANON:
            if start == self.image_end and not self.loaded:
                self.image_end = end  # .bss
            else:
                return bool(self.image_end) and 0 <= start - self.image_end <= _HEAP_WITHIN
        return False


class LiveProcesses(dict[int, Live]):
    """The traced processes that have not ended, by pid.

    Attributes:
        came: those that were added since whoever looks at new ones has cleared it: of thousands few are new.
    """

    def __init__(self) -> None:
        super().__init__()
        self.came: list[int] = []

    def __setitem__(self, pid: int, live: Live) -> None:
        self.came.append(pid)
        super().__setitem__(pid, live)

    def setdefault(self, pid: int, live: Live) -> Live:
        """The process of that pid, else the given one, which is one more."""
        if pid not in self:
            self[pid] = live
        return self[pid]


def ended(live: Iterable[int]) -> list[int]:
    """Those processes that have ended; after an exec that gains privilege the kernel does not report the end."""
    found = []
    for pid in live:
        try:
            gone = procfs.stat(pid).gone
        except Unavailable:
            gone = True
        if gone:
            found.append(pid)
    return found


Row = TypeVar("Row", bound=tuple[Any, ...])


def until(rows: list[Row], watermark: int) -> tuple[list[Row], list[Row]]:
    """The rows up to the watermark in order of time, and the rest."""
    if not rows:
        return [], rows
    due = sorted((row for row in rows if row[0] <= watermark), key=lambda row: row[0])
    return due, [row for row in rows if row[0] > watermark] if len(due) < len(rows) else []


def columns_of(schema: Schema, rows: list[tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """The rows as the columns of their stream."""
    dtype = np.dtype([(column.name, DTYPES[column.type]) for column in schema.columns])
    table = np.array(rows, dtype)
    return {name: np.ascontiguousarray(table[name]) for name in dtype.names or ()}


def with_listings(
    schema: Schema, rows: list[tuple[int, ...]], listings: list[tuple[int, dict[str, NDArray[Any]]]]
) -> dict[str, NDArray[Any]]:
    """Rows in order of time as the columns of their stream, with whole listings (time, columns) among them."""
    parts = []
    for time_ns, columns in sorted(listings, key=lambda one: one[0]):
        before, rows = until(rows, time_ns)
        parts += [columns_of(schema, before), columns]
    parts.append(columns_of(schema, rows))
    return {c.name: np.concatenate([part[c.name] for part in parts]) for c in schema.columns}


#: The exit code of a process of which none is known.
UNKNOWN_CODE = -1
_END = (1 << 64) - 1
_U64 = struct.Struct("<Q")


class ProcessRows:
    """The live processes, and rows of PROCESS, CONTENT_LOSS and ADDRESS_SPACE up to the watermark.

    Args:
        strings: where names get their codes.
        remaps: whether calls that change address spaces are told.
        shared: which processes share one address space.
    """

    def __init__(self, strings: Dictionary, remaps: bool, shared: SharedSpaces | None) -> None:
        self.live = LiveProcesses()
        self._strings = strings
        self._remaps = Remaps(strings.code("[anon]")) if remaps else None
        self._shared = shared or SharedSpaces()
        self._losses = ContentLosses(self._shared)
        self._processes: list[tuple[int, ...]] = []
        self._spaces: list[tuple[int, ...]] = []
        self._listings: list[tuple[int, dict[str, NDArray[Any]]]] = []

    @property
    def _waiting(self) -> bool:
        """Whether rows wait for the watermark."""
        return bool(self._processes or self._spaces or self._listings or self._losses)

    def launched(self, pid: int) -> None:
        """A process that we launched and that has not executed its command yet."""
        self.live[pid] = Live(os.getpid(), 0, {pid})

    def seen(self, pid: int, time_ns: int) -> None:
        """Adds a process that is already running: its name, threads and mappings as they are now, from time_ns on.

        Raises:
            TargetExited, Unavailable: from procfs.
        """
        stat = procfs.stat(pid)
        maps = procfs.read_maps(pid)
        if pid not in self.live:
            live = self.live[pid] = Live(
                stat.ppid, self._strings.code(stat.name), set(procfs.threads(pid)), image_end=_END
            )
            self._processes.append((time_ns, pid, live.ppid, pid, PROCESS_SEEN, live.name, UNKNOWN_CODE))
            for tid in sorted(live.threads - {pid}):
                name = self._strings.code(procfs.thread_name(pid, tid))
                self._processes.append((time_ns, pid, live.ppid, tid, PROCESS_NAME, name, UNKNOWN_CODE))
            if stat.ppid in self.live and same_memory(pid, stat.ppid):
                self._shared.joined(pid, stat.ppid)
                self._losses.shares(time_ns, pid, stat.ppid)
        self._forget(pid)
        self._list(pid, time_ns, maps.coded(self._strings))

    def unread(self, pid: int, time_ns: int) -> None:
        """Adds a process that ran before and ended before it was read: what it had mapped until then is not known.

        What it maps, moves and unmaps from now on is.
        """
        self.live[pid] = Live(0, 0, {pid}, image_end=_END)
        self._forget(pid)
        self._spaces.append((time_ns, pid, SPACE_REPLACE, 0, 0, 0, 0, 0, 0, 0))  # so far nothing is known

    def _list(self, pid: int, time_ns: int, columns: dict[str, NDArray[Any]]) -> None:
        if not (n := len(columns["start"])):
            return
        event = np.full(n, SPACE_MAP, "|u1")
        event[0] = SPACE_REPLACE
        columns["time_ns"] = np.full(n, time_ns, "<u8")
        columns["pid"], columns["event"] = np.full(n, pid, "<u4"), event
        heap = columns["flags"] >> KIND_SHIFT == KIND_HEAP
        self._losses.heap(pid, int(columns["end"][heap].max(initial=0)))
        self._listings.append((time_ns, columns))
        if self._remaps is not None:
            for row in zip(*(columns[c.name].tolist() for c in ADDRESS_SPACE.columns), strict=True):
                self._remaps.changed(row)

    def forget(self, pid: int) -> None:
        """A live process is not traced any more; should it come back, it is seen again."""
        if self.live.pop(pid, None) is not None:
            self._forget(pid)
            self._losses.ended(pid)
            self._shared.left(pid)

    def _lose(self, time_ns: int, misc: int, record: bytes) -> None:
        """Unmaps everything in live processes, so that faults are unresolved until the mappings are read again."""
        self._shared.lost()
        self._losses.births_lost()
        self._lose_calls(time_ns, misc, record)
        self._spaces += [(time_ns, pid, SPACE_UNMAP, 0, _END, 0, 0, 0, 0, 0) for pid in self.live]

    def _lose_calls(self, time_ns: int, misc: int, record: bytes) -> None:
        """Calls of all live processes are lacking: from then on, until what the record has in its last eight bytes."""
        self._losses.lost(time_ns, self.live, until_ns=_U64.unpack(record[-_U64.size :])[0])

    def _forget(self, pid: int) -> None:
        if self._remaps is not None:
            self._remaps.forget(pid)

    def _changed(self, rows: Iterable[tuple[int, ...]]) -> None:
        """Emits rows of an address space for every process that shares it."""
        for time_ns, pid, *rest in rows:
            for sharer in self._shared.of(pid):
                row = (time_ns, sharer, *rest)
                self._spaces.append(row)
                if self._remaps is not None:
                    self._remaps.changed(row)

    def _rows(self, watermark: int, source: str) -> Iterator[Batch]:
        processes, self._processes = until(self._processes, watermark)
        if processes:
            yield self._batch(PROCESS, columns_of(PROCESS, processes), source)
        if losses := self._losses.give(watermark, final=watermark == _END):
            yield self._batch(CONTENT_LOSS, columns_of(CONTENT_LOSS, losses), source)
        spaces, self._spaces = until(self._spaces, watermark)
        due = [one for one in self._listings if one[0] <= watermark]
        self._listings = [one for one in self._listings if one[0] > watermark]
        # In one batch: whoever applies process rows must know when all address_space rows of their time are there.
        if spaces or due:
            yield self._batch(ADDRESS_SPACE, with_listings(ADDRESS_SPACE, spaces, due), source)

    def _batch(self, schema: Schema, columns: dict[str, NDArray[Any]], source: str) -> Batch:
        times = columns["time_ns"]
        return Batch(schema, columns, window=(int(times[0]), int(times[-1])), source=source, strings=self._strings)
