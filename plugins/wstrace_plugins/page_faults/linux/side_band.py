"""The side band: the kernel's records of processes and mappings beside the faults, as PROCESS and ADDRESS_SPACE."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from wstrace.batch import Batch, Columns, Dictionary
from wstrace.errors import Unavailable
from wstrace.schema import (
    ADDRESS_SPACE,
    CONTENT_LOSS,
    DTYPES,
    KIND_ANON,
    KIND_FILE,
    KIND_HEAP,
    KIND_SHARED,
    KIND_SHIFT,
    KIND_VDSO,
    MAP_SHARED,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
    PROCESS_NAME,
    PROCESS_SEEN,
    PROCESS_TITLE,
    SPACE_MAP,
    SPACE_REPLACE,
    SPACE_UNMAP,
    Schema,
)
from wstrace_plugins.os.linux import libc, procfs
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.calls import MAP_LOCKED, Calls, ContentLosses, space_rows
from wstrace_plugins.page_faults.linux.samples import starts

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEAP_WITHIN = 1 << 30  # arch_randomize_brk(): up to 32 MiB above the image on x86-64, 1 GiB on arm64


class Live:
    """A process: its parent, name (code) and threads, where its program's image ends, and whether that image is mapped
    completely.

    Attributes:
        bare: whether the last record about the process was its exec.
        title: that it gave itself since it executed its program, the last one that is known.
    """

    def __init__(
        self, ppid: int, name: int, threads: set[int], image: int = 0, image_end: int = 0, loaded: bool = False
    ) -> None:
        self.ppid, self.name, self.threads = ppid, name, threads
        self.image, self.image_end, self.loaded = image, image_end, loaded
        self.bare, self.title = False, b""

    def maps_heap(self, start: int, end: int, code: int, kind: int) -> bool:
        """Notes a mapping, and says whether it is the heap although the kernel reports it as //anon.

        At the heap's first growth, brk() sets mm->brk only after calling perf (mm/mmap.c, 6.x). Without address
        randomization the heap begins where .bss ends; execve() maps .bss itself, before the interpreter and the vdso
        (load_elf_binary()).
        start, end: its addresses. code: the code of its name. kind: KIND_*.
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
    """The traced processes that have not ended, by pid. parents: which are to have the parent of each, too."""

    def __init__(self, parents: dict[int, int] | None = None) -> None:
        super().__init__()
        self._parents = {} if parents is None else parents

    def __setitem__(self, pid: int, live: Live) -> None:
        self._parents[pid] = live.ppid
        super().__setitem__(pid, live)

    def gone(self, pid: int) -> bool:
        """Removes a process; whether it was there."""
        self._parents.pop(pid, None)
        return super().pop(pid, None) is not None

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


def columns_of(schema: Schema, rows: list[tuple[int, ...]]) -> Columns:
    """The rows as the columns of their stream."""
    dtype = np.dtype([(column.name, DTYPES[column.type]) for column in schema.columns])
    table = np.array(rows, dtype)
    return {name: np.ascontiguousarray(table[name]) for name in dtype.names or ()}


#: The exit code of a process of which none is known.
UNKNOWN_CODE = -1
_END = (1 << 64) - 1
_U64 = struct.Struct("<Q")


Record = tuple[int, int, int, bytes]  # time, type, misc, all of it
_HEADER = struct.Struct("<IHH")  # type, misc, size
_MMAP2 = struct.Struct("<II QQQ II QQ II")  # pid tid, addr len pgoff, maj min, ino generation, prot flags
_TASK = struct.Struct("<IIII")  # pid ppid tid ptid
_IDS = struct.Struct("<II")  # pid tid
_SAMPLE_ID = 16  # TID and TIME at the end of every record
assert (_HEADER.size, _MMAP2.size, _TASK.size) == (8, 64, 16)
_CALLS_LOST = -1  # calls were lost, and no mapping
_TITLE = -2  # a title that was read from /proc: put in order among the records, it is of the right program
_CACHE = 4096
_KEPT = 1 << 16


class SideBand:
    """Decodes side-band records and emits them in order of time, up to the watermark.

    Process rows whose tid equals the pid describe the process, which has ended when its last thread has. `code` is the
    exit code (128 + N for a signal) where it can still be read, else -1.
    strings: where names get their codes. children: whether processes that the traced ones start are traced too.
    exit_code: pid -> its exit code where we know it, else None. calls: decodes the tracepoints of system calls, where
    these are permitted. new_task: the id of the tracepoint of new tasks, None where it is not permitted. parents:
    Progress.parents, which is kept up to date.
    """

    def __init__(
        self,
        strings: Dictionary,
        *,
        children: bool,
        exit_code: Callable[[int], int | None],
        calls: Calls | None = None,
        new_task: int | None = None,
        parents: dict[int, int] | None = None,
    ) -> None:
        self.live = LiveProcesses(parents)
        self._strings = strings
        self._losses = ContentLosses(new_task)
        self._processes: list[tuple[int, ...]] = []
        self._spaces: list[tuple[int, ...]] = []
        #: Processes that ended recently, whose last faults arrive with the record of the end or after it.
        self.ended: set[int] = set()
        #: Whether a process outlived its parent, so that no traced process waits for it.
        self.orphaned = False
        self.lost = self.skipped = 0
        #: Records of processes that are not traced, and all records of rare calls that were lost.
        self.others = 0
        #: Whether records were lost, so that the mappings of live processes must be read again.
        self.stale = False
        #: The number of programs that gained privilege by exec, at which the kernel ended their trace.
        self.privileged_programs = 0
        self._calls = calls
        self._children, self._exit_code = children, exit_code
        self._records: list[Record] = []
        self._given_until = 0  #: up to when records were given
        self._takes: Callable[[int, int, int, bytes], bool] = lambda time_ns, kind, misc, record: True
        self._labels: dict[bytes, tuple[int, int]] = {}
        self._readers = {
            perf.PERF_RECORD_MMAP2: self._mmap2,
            perf.PERF_RECORD_COMM: self._comm,
            perf.PERF_RECORD_FORK: self._fork,
            perf.PERF_RECORD_EXIT: self._exit,
            perf.PERF_RECORD_LOST: self._lose,
            perf.PERF_RECORD_SAMPLE: self._tracepoint,
            _CALLS_LOST: self._lose_calls,
            _TITLE: self._title,
        }

    @property
    def holds(self) -> bool:
        """True when records wait for the watermark."""
        return bool(self._records or self._processes or self._spaces or self._losses)

    def traced_losses(self, *, calls_everywhere: bool) -> tuple[str, ...]:
        """The kinds of content losses that are recorded, as TraceInfo.content_losses; `calls_everywhere`: of all
        threads, where calls are traced at all.
        """
        calls = self._calls.names if self._calls is not None and calls_everywhere else frozenset[str]()
        return self._losses.traced(calls)

    def rare_calls_end(self, names: Collection[str]) -> None:
        """These calls are no longer recorded."""
        if self._calls is not None:
            self._calls.end(names)

    def take(self, raw: bytes, *, rare: bool = False, full_ns: int = 0) -> None:
        """Holds what was read from one CPU's ring. The same record twice in a row is from a thread with two events.

        rare: they are of rare calls: what is lost of them costs no mapping. full_ns: until then their ring was full:
        what came after them is lost.
        """
        at, before, before_ns = 0, b"", self._given_until
        while at + _HEADER.size <= len(raw):
            kind, misc, size = _HEADER.unpack_from(raw, at)
            if size < _HEADER.size + _SAMPLE_ID or at + size > len(raw):
                break
            record = raw[at : at + size]
            at += size
            if record == before:
                continue
            time_ns = _U64.unpack_from(record, 16 if kind == perf.PERF_RECORD_SAMPLE else size - 8)[0]
            if kind != perf.PERF_RECORD_LOST:
                self._records.append((time_ns, kind, misc, record))
            elif rare:
                self.others += _U64.unpack_from(record, 16)[0]
                # a ring that was read since had room from then on
                self._lose_from(before_ns, time_ns if before else min(time_ns, before_ns + 1), _CALLS_LOST)
            else:
                self.lost += _U64.unpack_from(record, 16)[0]
                self.stale = True
                self._lose_from(before_ns, time_ns, perf.PERF_RECORD_LOST)
            before, before_ns = record, time_ns
        if full_ns:
            self._lose_from(before_ns, full_ns, _CALLS_LOST)

    def _lose_from(self, before_ns: int, until_ns: int, kind: int) -> None:
        """Records were lost after the one of that time, if there was one, and until the second time."""
        since, until = before_ns + 1 if before_ns else until_ns, _U64.pack(until_ns)
        self._records.append((since, kind, 0, until))
        if until_ns > since:
            self._records.append((until_ns, _CALLS_LOST, 0, until))

    def skip(self, raw: NDArray[Any], now_ns: int) -> None:
        """Counts what was read from a ring, and treats it as lost: u8, shape (n,)."""
        self.skipped += len(starts(raw.view("<u8"))[0])
        self.stale = True
        self._records.append((now_ns, perf.PERF_RECORD_LOST, 0, _U64.pack(now_ns)))

    def _mmap2(self, time_ns: int, misc: int, record: bytes) -> None:
        """A process has mapped something, by mmap(), execve(), brk() or shmat()."""
        pid, tid, start, length, offset, major, minor, ino, _, prot, flags = _MMAP2.unpack_from(record, 8)
        call = None
        if self._calls is not None and (call := self._calls.mapped(time_ns, pid, tid, start, start + length)):
            self._losses.called(call)
        if flags & MAP_LOCKED:
            self._losses.locked(time_ns, pid, start, start + length)
        raw = record[8 + _MMAP2.size : -_SAMPLE_ID].partition(b"\0")[0]
        if raw.startswith(b"/SYSV"):
            self._losses.attached(pid, start, start + length)
        known = self._labels.get(raw)
        if known is None:
            if len(self._labels) >= _CACHE:
                self._labels.clear()
            name, kind = procfs.label(os.fsdecode(raw))
            known = self._labels[raw] = (self._strings.code(name), kind)
        code, kind = known
        if (live := self.live.get(pid)) is not None:
            live.bare = False
            if live.maps_heap(start, start + length, code, kind):
                code, kind = self._strings.code("[heap]"), KIND_HEAP
            live.loaded |= kind == KIND_VDSO
        bits = prot & 7 | (MAP_SHARED if flags & 1 else 0) | kind << KIND_SHIFT  # PROT_* = MAP_READ, WRITE, EXECUTE
        if kind not in (KIND_FILE, KIND_SHARED):
            offset = 0  # without a file, vm_pgoff holds the address
        row = (time_ns, pid, SPACE_MAP, start, start + length & _END, offset, code, procfs.device(major, minor), ino,
               bits)  # fmt: skip
        self._changed([row])

    def _tracepoint(self, time_ns: int, misc: int, record: bytes) -> None:
        pid, thread = _IDS.unpack_from(record, 8)
        if pid not in self.live:  # births and rare calls are seen of all processes
            self.others += 1
            return
        if self._losses.sampled(thread, record) or self._calls is None:
            return
        call = self._calls.known(time_ns, record)
        if call is not None:
            self._changed(space_rows(call))
            self._losses.called(call)

    def _comm(self, time_ns: int, misc: int, record: bytes) -> None:
        pid, tid = _IDS.unpack_from(record, 8)
        name = self._strings.code(os.fsdecode(record[16:-_SAMPLE_ID].partition(b"\0")[0]))
        live = self.live.setdefault(pid, Live(0, name, {tid}))
        live.bare = bool(misc & perf.PERF_RECORD_MISC_COMM_EXEC)
        if live.bare:
            live.image, live.image_end, live.loaded, live.title = 0, 0, False, b""
            self._losses.executed(time_ns, pid)
            # the other threads have ended, and the thread that called exec has taken the first one's id
            live.threads = {pid}
        if tid == pid:
            live.name = name
        self._processes.append((time_ns, pid, live.ppid, tid, PROCESS_EXEC if live.bare else PROCESS_NAME, name,
                                UNKNOWN_CODE))  # fmt: skip

    def _fork(self, time_ns: int, misc: int, record: bytes) -> None:
        pid, ppid, tid, parent_thread = _TASK.unpack_from(record, 8)
        if pid != ppid and not self._children:
            return
        parent = self.live.get(ppid)
        name = parent.name if parent else 0
        if parent is not None:
            parent.bare = False
        if pid == ppid:
            self.live.setdefault(pid, Live(0, name, {pid})).threads.add(tid)
            ppid = self.live[pid].ppid
        else:
            image = (parent.image, parent.image_end, parent.loaded) if parent else ()
            self.live[pid] = Live(ppid, name, {tid}, *image)
            self._losses.forked(time_ns, pid, ppid, parent_thread)
        self._processes.append((time_ns, pid, ppid, tid, PROCESS_FORK, name, UNKNOWN_CODE))

    def _exit(self, time_ns: int, misc: int, record: bytes) -> None:
        """A thread has ended; with its last one, so has the process."""
        pid, _, tid, _ = _TASK.unpack_from(record, 8)
        live = self.live.setdefault(pid, Live(0, 0, {tid}))
        if live.bare and tid == pid:
            # begin_new_exec() in fs/exec.c: the process has gained privilege, and perf_event_exit_task() takes the
            # events off it before anything of the program is mapped; it continues without them
            live.bare = False
            self.privileged_programs += 1
            return
        live.threads.discard(tid)
        if tid != pid:
            self._processes.append((time_ns, pid, live.ppid, tid, PROCESS_EXIT, live.name, UNKNOWN_CODE))
        if not live.threads:
            self.live.gone(pid)
            self.orphaned = self.orphaned or any(child.ppid == pid for child in self.live.values())
            if len(self.ended) >= _KEPT:
                self.ended.clear()
            self.ended.add(pid)
            self._losses.ended(pid, time_ns)
            code = self._code(pid)
            self._processes.append((time_ns, pid, live.ppid, pid, PROCESS_EXIT, live.name, code))

    def _code(self, pid: int) -> int:
        code = self._exit_code(pid)
        return procfs.exit_code(pid, UNKNOWN_CODE) if code is None else code

    def lazily(self, traced: Callable[[SideBand, int, int, int, bytes], bool], named: Callable[[bytes], None]) -> None:
        """From now on only records that traced() takes are read; named() gets those of new cgroups."""
        self._takes = functools.partial(traced, self)
        self._readers[perf.PERF_RECORD_CGROUP] = lambda time_ns, misc, record: named(record)

    def titled(self, pid: int, time_ns: int, title: bytes) -> bool:
        """Adds the title that a live process had at that time; False where it is the last one that is known."""
        if (live := self.live.get(pid)) is None or live.title == title:
            return False
        self._records.append((time_ns, _TITLE, pid, title))
        return True

    def _title(self, time_ns: int, pid: int, title: bytes) -> None:
        if (live := self.live.get(pid)) is not None and live.title != title:
            live.title = title
            name = self._strings.code(os.fsdecode(title))
            self._processes.append((time_ns, pid, live.ppid, pid, PROCESS_TITLE, name, UNKNOWN_CODE))

    def give(self, watermark: int, source: str) -> Iterator[Batch]:
        """Batches of what happened up to the watermark, in order of time: of processes, then of their address spaces.

        Records are decoded only here: a thread may start on one CPU and end on another, and rings are read one by one.
        """
        self._given_until = max(watermark, self._given_until)
        due, self._records = until(self._records, watermark)
        for time_ns, kind, misc, record in due:
            if (reader := self._readers.get(kind)) is not None and self._takes(time_ns, kind, misc, record):
                reader(time_ns, misc, record)
        yield from self._rows(watermark, source)

    def launched(self, pid: int) -> None:
        """A process that we launched and that has not executed its command yet."""
        self.live[pid] = Live(os.getpid(), 0, {pid})

    def seen(self, pid: int, time_ns: int) -> None:
        """Adds a process that is already running: its name, threads and mappings as they are now, from time_ns on.

        Raises TargetExited, Unavailable: from procfs.
        """
        stat = procfs.stat(pid)
        maps = procfs.read_maps(pid)
        if pid not in self.live:
            live = self.live[pid] = Live(
                stat.ppid, self._strings.code(stat.name), set(procfs.threads(pid)), image_end=_END
            )
            self._processes.append((time_ns, pid, live.ppid, pid, PROCESS_SEEN, live.name, UNKNOWN_CODE))
            for tid in sorted(live.threads - {pid}):
                name = self._strings.code(procfs.name(f"{pid}/task/{tid}"))
                self._processes.append((time_ns, pid, live.ppid, tid, PROCESS_NAME, name, UNKNOWN_CODE))
            if stat.ppid in self.live and libc.same_memory(pid, stat.ppid):
                self._losses.shares(time_ns, pid, stat.ppid)
        self._list(pid, time_ns, maps.coded(self._strings))

    def unread(self, pid: int, time_ns: int) -> None:
        """Adds a process that ran before and ended before it was read: what it had mapped until then is not known.

        What it maps, moves and unmaps from now on is.
        """
        self.live[pid] = Live(0, 0, {pid}, image_end=_END)
        self._spaces.append((time_ns, pid, SPACE_REPLACE, 0, 0, 0, 0, 0, 0, 0))  # so far nothing is known

    def _list(self, pid: int, time_ns: int, columns: Columns) -> None:
        values = [columns[c.name].tolist() for c in ADDRESS_SPACE.columns[3:]]
        events = chain((SPACE_REPLACE,), repeat(SPACE_MAP))
        self._spaces += zip(repeat(time_ns), repeat(pid), events, *values)
        heaps = columns["end"][columns["flags"] >> KIND_SHIFT == KIND_HEAP]
        self._losses.heap(pid, int(heaps.max(initial=0)))

    def forget(self, pid: int) -> None:
        """A live process is not traced any more; should it come back, it is seen again."""
        if self.live.gone(pid):
            self._losses.ended(pid)

    def _lose(self, time_ns: int, misc: int, record: bytes) -> None:
        """Unmaps everything in live processes, so that faults are unresolved until the mappings are read again."""
        self._losses.births_lost()
        self._lose_calls(time_ns, misc, record)
        self._spaces += [(time_ns, pid, SPACE_UNMAP, 0, _END, 0, 0, 0, 0, 0) for pid in self.live]

    def _lose_calls(self, time_ns: int, misc: int, record: bytes) -> None:
        """Calls of all live processes are lacking: from then on, until what the record has in its last eight bytes."""
        self._losses.lost(time_ns, self.live, until_ns=_U64.unpack(record[-_U64.size :])[0])

    def _changed(self, rows: Iterable[tuple[int, ...]]) -> None:
        """Emits rows of an address space for every process that shares it."""
        for time_ns, pid, *rest in rows:
            for sharer in self._losses.of(pid):
                self._spaces.append((time_ns, sharer, *rest))

    def _rows(self, watermark: int, source: str) -> Iterator[Batch]:
        processes, self._processes = until(self._processes, watermark)
        if processes:
            yield self._batch(PROCESS, columns_of(PROCESS, processes), source)
        if losses := self._losses.give(watermark):
            yield self._batch(CONTENT_LOSS, columns_of(CONTENT_LOSS, losses), source)
        spaces, self._spaces = until(self._spaces, watermark)
        # In one batch: whoever applies process rows must know when all address_space rows of their time are there.
        if spaces:
            yield self._batch(ADDRESS_SPACE, columns_of(ADDRESS_SPACE, spaces), source)

    def _batch(self, schema: Schema, columns: Columns, source: str) -> Batch:
        times = columns["time_ns"]
        return Batch(schema, columns, window=(int(times[0]), int(times[-1])), source=source, strings=self._strings)
