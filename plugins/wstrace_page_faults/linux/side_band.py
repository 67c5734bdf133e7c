"""The side band: the kernel's records of processes and mappings beside the faults, as PROCESS and ADDRESS_SPACE."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Batch, Dictionary
from wstrace.errors import Unavailable
from wstrace.schema import (
    ADDRESS_SPACE,
    CONTENT_LOSS,
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
from wstrace_os.linux import procfs
from wstrace_page_faults.linux import perf_event as perf
from wstrace_page_faults.linux.calls import Calls
from wstrace_page_faults.linux.content_losses import ContentLosses
from wstrace_page_faults.linux.in_order import columns_of, until
from wstrace_page_faults.linux.live import Live
from wstrace_page_faults.linux.remaps import Remaps
from wstrace_page_faults.linux.shared_spaces import SharedSpaces, same_memory
from wstrace_page_faults.linux.tracepoints import EVERYWHERE

_HEADER = struct.Struct("<IHH")  # type, misc, size
_MMAP2 = struct.Struct("<II QQQ II QQ II")  # pid tid, addr len pgoff, maj min, ino generation, prot flags
_TASK = struct.Struct("<IIII")  # pid ppid tid ptid
_IDS = struct.Struct("<II")  # pid tid
_U64 = struct.Struct("<Q")
_SAMPLE_ID = 16  # TID and TIME at the end of every record
assert (_HEADER.size, _MMAP2.size, _TASK.size) == (8, 64, 16)
_RARE_LOST = -1  # a PERF_RECORD_LOST of the rings of rare calls
_TITLE = -2  # a title that was read from /proc: put in order among the records, it is of the right program
_UNKNOWN_CODE = -1
_CACHE = 4096
_KEPT = 1 << 16
_END = (1 << 64) - 1


class SideBand:
    """Decodes side-band records and emits them in order of time, up to the watermark.

    Process rows whose tid equals the pid describe the process, which has ended when its last thread has. `code` is the
    exit code (128 + N for a signal) where it can still be read, else -1.

    Args:
        strings: where names get their codes.
        children: whether processes that the traced ones start are traced too.
        exit_code: pid -> its exit code where we know it, else None.
        calls: decodes the tracepoints of system calls, where these are permitted.
        shared: which processes share one address space.
    """

    def __init__(
        self,
        strings: Dictionary,
        *,
        children: bool,
        exit_code: Callable[[int], int | None],
        calls: Calls | None = None,
        shared: SharedSpaces | None = None,
    ) -> None:
        self.live: dict[int, Live] = {}
        #: Processes that ended recently, whose last faults arrive with the record of the end or after it.
        self.ended: set[int] = set()
        #: Whether a process outlived its parent, so that no traced process waits for it.
        self.orphaned = False
        self.lost = self.records = 0
        #: Records of processes that are not traced, and all records of rare calls that were lost.
        self.others = 0
        #: Whether records were lost, so that the mappings of live processes must be read again.
        self.stale = False
        #: The number of programs that gained privilege by exec, at which the kernel ended their trace.
        self.privileged_programs = 0
        self._privileged: list[int] = []
        self._calls = calls
        self._remaps = Remaps(strings.code("[anon]")) if calls is not None else None
        self._shared = shared or SharedSpaces()
        self._losses = ContentLosses(self._shared)
        self._strings, self._children, self._exit_code = strings, children, exit_code
        self._records: list[tuple[int, int, int, bytes]] = []
        self._processes: list[tuple[int, ...]] = []
        self._spaces: list[tuple[int, ...]] = []
        self._listings: list[tuple[int, dict[str, NDArray[Any]]]] = []
        self._given_until = 0
        self._labels: dict[bytes, tuple[int, int]] = {}
        self._readers = {
            perf.PERF_RECORD_MMAP2: self._mmap2,
            perf.PERF_RECORD_COMM: self._comm,
            perf.PERF_RECORD_FORK: self._fork,
            perf.PERF_RECORD_EXIT: self._exit,
            perf.PERF_RECORD_LOST: self._lose,
            perf.PERF_RECORD_SAMPLE: self._tracepoint,
            _RARE_LOST: self._lose_calls,
            _TITLE: self._title,
        }

    @property
    def holds(self) -> bool:
        """True when records wait for the watermark."""
        return bool(self._records or self._processes or self._spaces or self._listings or self._losses)

    def traced_losses(self, *, calls_everywhere: bool) -> tuple[str, ...]:
        """The kinds of content losses that are recorded, as TraceInfo.content_losses; `calls_everywhere`: of all
        threads, where calls are traced at all.
        """
        return self._losses.traced(self._calls.names if self._calls is not None and calls_everywhere else ())

    def rare_calls_end(self) -> None:
        """Rare calls are no longer recorded."""
        if self._calls is not None:
            self._calls.end(EVERYWHERE)

    # -- from the kernel -----------------------------------------------------------------------------------------------

    def take(self, raw: bytes, *, rare: bool = False, full: bool = False) -> None:
        """Holds what was read from one CPU's ring. The same record twice in a row is from a thread with two events.

        Args:
            raw: the records.
            rare: they are of rare calls: what is lost of them costs no mapping.
            full: so is their ring: what came after them is lost.
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
            if kind == perf.PERF_RECORD_LOST:
                count = _U64.unpack_from(record, 16)[0]
                self.others += count * rare
                self.lost += count * (not rare)
                self.stale |= not rare
                kind = _RARE_LOST if rare else kind
                if before_ns:
                    time_ns = before_ns + 1  # the loss happened after the record before
            self._records.append((time_ns, kind, misc, record))
            self.records += 1
            before, before_ns = record, time_ns
        if full:
            self._records.append((before_ns + 1, _RARE_LOST, 0, b""))

    def _mmap2(self, time_ns: int, misc: int, record: bytes) -> None:
        pid, tid, start, length, offset, major, minor, ino, _, prot, flags = _MMAP2.unpack_from(record, 8)
        if self._calls is not None and (call := self._calls.mapped(time_ns, pid, tid, start, start + length)):
            self._losses.called(call)
        raw = record[8 + _MMAP2.size : -_SAMPLE_ID].partition(b"\0")[0]
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
        if self._shared.sampled(thread, record) or self._calls is None:
            return
        call = self._calls.returned(time_ns, record)
        if call is None or self._remaps is None:
            return
        if call.name == "shmdt" and (call := self._remaps.detached(call)) is None:
            self._losses.lost(time_ns, (pid,))
            return
        self._changed(self._remaps.rows(call))
        self._losses.called(call)

    def _changed(self, rows: Iterable[tuple[int, ...]]) -> None:
        """Emits rows of an address space for every process that shares it."""
        for time_ns, pid, *rest in rows:
            for sharer in self._shared.of(pid):
                row = (time_ns, sharer, *rest)
                self._spaces.append(row)
                if self._remaps is not None and row[2] == SPACE_MAP:
                    self._remaps.mapped(row)

    def _comm(self, time_ns: int, misc: int, record: bytes) -> None:
        pid, tid = _IDS.unpack_from(record, 8)
        name = self._strings.code(os.fsdecode(record[16:-_SAMPLE_ID].partition(b"\0")[0]))
        live = self.live.setdefault(pid, Live(0, name, {tid}))
        live.bare = bool(misc & perf.PERF_RECORD_MISC_COMM_EXEC)
        if live.bare:
            live.image, live.image_end, live.loaded, live.title = 0, 0, False, b""
            self._shared.left(pid)
            self._forget(pid)
            self._losses.executed(time_ns, pid)
            # the other threads have ended, and the thread that called exec has taken the first one's id
            live.threads = {pid}
        if tid == pid:
            live.name = name
        self._processes.append((time_ns, pid, live.ppid, tid, PROCESS_EXEC if live.bare else PROCESS_NAME, name,
                                _UNKNOWN_CODE))  # fmt: skip

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
            self._shared.forked(pid, ppid, parent_thread)
            self._losses.forked(time_ns, pid, ppid)
            if self._remaps is not None:
                self._remaps.forked(pid, ppid)
        self._processes.append((time_ns, pid, ppid, tid, PROCESS_FORK, name, _UNKNOWN_CODE))

    def _exit(self, time_ns: int, misc: int, record: bytes) -> None:
        pid, _, tid, _ = _TASK.unpack_from(record, 8)
        live = self.live.setdefault(pid, Live(0, 0, {tid}))
        if live.bare and tid == pid:
            # begin_new_exec() in fs/exec.c: the process has gained privilege, and perf_event_exit_task() takes the
            # events off it before anything of the program is mapped; it continues without them
            live.bare = False
            self.privileged_programs += 1
            self._privileged.append(pid)
            return
        live.threads.discard(tid)
        if tid != pid:
            self._processes.append((time_ns, pid, live.ppid, tid, PROCESS_EXIT, live.name, _UNKNOWN_CODE))
        if not live.threads:
            del self.live[pid]
            self.orphaned = self.orphaned or any(child.ppid == pid for child in self.live.values())
            if len(self.ended) >= _KEPT:
                self.ended.clear()
            self.ended.add(pid)
            self._forget(pid)
            self._losses.ended(pid)
            self._shared.left(pid)
            code = self._code(pid)
            self._processes.append((time_ns, pid, live.ppid, pid, PROCESS_EXIT, live.name, code))

    def _forget(self, pid: int) -> None:
        if self._remaps is not None:
            self._remaps.forget(pid)

    def _code(self, pid: int) -> int:
        code = self._exit_code(pid)
        return procfs.exit_code(pid, _UNKNOWN_CODE) if code is None else code

    def _lose(self, time_ns: int, misc: int, record: bytes) -> None:
        """Unmaps everything in live processes, so that faults are unresolved until the mappings are read again."""
        self._shared.lost()
        self._losses.lost(time_ns, self.live)
        self._spaces += [(time_ns, pid, SPACE_UNMAP, 0, _END, 0, 0, 0, 0, 0) for pid in self.live]

    def _lose_calls(self, time_ns: int, misc: int, record: bytes) -> None:
        self._losses.lost(time_ns, self.live)

    # -- from us and /proc ---------------------------------------------------------------------------------------------

    def launched(self, pid: int) -> None:
        """A process that we launched and that has not executed its command yet."""
        self.live[pid] = Live(os.getpid(), 0, {pid})

    def privileged_now(self) -> list[int]:
        """The processes whose trace the kernel ended since the last call, because they gained privilege by exec."""
        now, self._privileged = self._privileged, []
        return now

    def gone(self) -> list[int]:
        """The live processes that have ended; after an exec that gains privilege the kernel does not report the end."""
        found = []
        for pid in self.live:
            try:
                ended = procfs.stat(pid).gone
            except Unavailable:
                ended = True
            if ended:
                found.append(pid)
        return found

    def seen(self, pid: int, time_ns: int) -> None:
        """Adds a process that is already running: its name, threads and mappings as they are now, from time_ns on.

        Raises:
            TargetExited, Unavailable: from procfs.
        """
        stat = procfs.stat(pid)
        columns = procfs.read_maps(pid).coded(self._strings)
        if pid not in self.live:
            live = self.live[pid] = Live(stat.ppid, self._strings.code(stat.name), set(procfs.threads(pid)))
            self._processes.append((time_ns, pid, live.ppid, pid, PROCESS_SEEN, live.name, _UNKNOWN_CODE))
            for tid in sorted(live.threads - {pid}):
                name = self._strings.code(procfs.thread_name(pid, tid))
                self._processes.append((time_ns, pid, live.ppid, tid, PROCESS_NAME, name, _UNKNOWN_CODE))
            if stat.ppid in self.live and same_memory(pid, stat.ppid):
                self._shared.joined(pid, stat.ppid)
                self._losses.shares(time_ns, pid, stat.ppid)
        n = len(columns["start"])
        if n:
            event = np.full(n, SPACE_MAP, "|u1")
            event[0] = SPACE_REPLACE
            columns["time_ns"] = np.full(n, time_ns, "<u8")
            columns["pid"], columns["event"] = np.full(n, pid, "<u4"), event
            heap = columns["flags"] >> KIND_SHIFT == KIND_HEAP
            self._losses.heap(pid, int(columns["end"][heap].max(initial=0)))
            self._listings.append((time_ns, columns))
            if self._remaps is not None:
                self._forget(pid)
                for row in zip(*(columns[c.name].tolist() for c in ADDRESS_SPACE.columns), strict=True):
                    self._remaps.mapped(row)

    def titled(self, pid: int, time_ns: int, title: bytes) -> bool:
        """Adds the title that a live process had at that time; False where it is the one that was told last."""
        if (live := self.live.get(pid)) is None or live.title == title:
            return False
        self._records.append((time_ns, _TITLE, pid, title))
        return True

    def _title(self, time_ns: int, pid: int, title: bytes) -> None:
        if (live := self.live.get(pid)) is not None and live.title != title:
            live.title = title
            name = self._strings.code(os.fsdecode(title))
            self._processes.append((time_ns, pid, live.ppid, pid, PROCESS_TITLE, name, _UNKNOWN_CODE))

    # -- to the bus ----------------------------------------------------------------------------------------------------

    def give(self, watermark: int, source: str) -> Iterator[Batch]:
        """Batches of what happened up to the watermark, in order of time: of processes, then of their address spaces.

        Records are decoded only here: a thread may start on one CPU and end on another, and rings are read one by one.
        """
        self._given_until = max(watermark, self._given_until)
        due_records, self._records = until(self._records, watermark)
        for time_ns, kind, misc, record in due_records:
            if (reader := self._readers.get(kind)) is not None:
                reader(time_ns, misc, record)
        processes, self._processes = until(self._processes, watermark)
        if processes:
            yield self._batch(PROCESS, columns_of(PROCESS, processes), source)
        if losses := self._losses.give(watermark, final=watermark == _END):
            yield self._batch(CONTENT_LOSS, columns_of(CONTENT_LOSS, losses), source)
        spaces, self._spaces = until(self._spaces, watermark)
        due = sorted((one for one in self._listings if one[0] <= watermark), key=lambda one: one[0])
        if not spaces and not due:
            return
        self._listings = [one for one in self._listings if one[0] > watermark]
        parts = []
        for time_ns, columns in due:
            before, spaces = until(spaces, time_ns)
            parts += [columns_of(ADDRESS_SPACE, before), columns]
        parts.append(columns_of(ADDRESS_SPACE, spaces))
        # In one batch: whoever applies process rows must know when all address_space rows of their time are there.
        whole = {c.name: np.concatenate([part[c.name] for part in parts]) for c in ADDRESS_SPACE.columns}
        if len(whole["time_ns"]):
            yield self._batch(ADDRESS_SPACE, whole, source)

    def _batch(self, schema: Schema, columns: dict[str, NDArray[Any]], source: str) -> Batch:
        times = columns["time_ns"]
        return Batch(schema, columns, window=(int(times[0]), int(times[-1])), source=source, strings=self._strings)
