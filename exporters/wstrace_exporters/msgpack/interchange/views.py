"""The views `faults` and `processes` of a query: rows with names where the streams have ids, codes and flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.composition import Past
from wstrace.analysis.moments import LastSnapshots
from wstrace.analysis.names import Processes
from wstrace.analysis.symbols import label_of, symbolizer_of
from wstrace.batch import Batch
from wstrace.schema import (
    DTYPES,
    FAULT_ACCESS_KNOWN,
    FAULT_EXECUTE,
    FAULT_MAJOR,
    FAULT_PC_KERNEL,
    FAULT_WRITE,
    KINDS,
    PAGE_EXCLUSIVE,
    PAGE_FAULT,
    PROCESS_EXIT,
    RESIDENT_PAGES,
    STACK_HOW,
    Column,
    Schema,
)
from wstrace_exporters.msgpack.interchange.blame_tables import OWNERS, owners
from wstrace_exporters.msgpack.read.trace import TraceFile

ACCESSES = ("", "read", "write", "execute")
FAULTS = Schema(
    "faults",
    (
        Column("time_ns", "u64", "ns", "monotonic clock; absent on Windows"),
        Column("pid", "u32", "id", "the process"),
        Column("process", "u32", "str", "the name of the process at that time"),
        Column("tid", "u32", "id", "the thread"),
        Column("thread", "u32", "str", "the name of the thread at that time"),
        Column("cgroup", "u32", "str", "the path of the control group that the thread was in, where it was recorded"),
        Column("va", "u64", "addr", "the faulting byte address"),
        Column("file", "u32", "str", "what is mapped there: a path, or [heap], [stack], [anon] ..."),
        Column("kind", "u8", "id", "of that memory", words=KINDS),
        Column("pc", "u64", "addr", "the faulting instruction"),
        Column("pc_file", "u32", "str", "the file of the instruction, or [kernel]"),
        Column("pc_function", "u32", "str", "its module!function, else its module!section(n)"),
        Column("from_disk", "u8", "count", "1 = a major fault: it read from a disk"),
        Column("in_kernel", "u8", "count", "1 = taken in the kernel, on behalf of the process"),
        Column("access", "u8", "id", "what the instruction did; empty where the system does not say", words=ACCESSES),
        Column("own_line", "u32", "str", "the program's own line of the Python stack, else the instruction's function"),
        Column("function", "u32", "str", "the function of the Python stack, else of the instruction"),
        Column("package", "u32", "str", "the package or module that it belongs to"),
        Column("stack", "u32", "stack", "the Python stack in `stacks`, 0 = none"),
        Column("stack_how", "u8", "id", "how the Python stack was had, or why there is none", words=STACK_HOW),
        Column("native_stack", "u32", "stack", "the sampled native stack in `stacks`, 0 = none"),
        Column("weight", "u32", "count", "recorded faults of its thread that its native stack stands for"),
        Column("sampled", "u32", "count", "one out of so many faults was recorded then: it stands for so many"),
    ),
)
PROCESSES = Schema(
    "processes",
    (
        Column("pid", "u32", "id", "the process"),
        Column("ppid", "u32", "id", "its parent, 0 = not known"),
        Column("name", "u32", "str", "its last name"),
        Column("began_ns", "u64", "ns", "its first record"),
        Column("ended_ns", "u64", "ns", "its end; 0 = not in the trace"),
        Column("code", "i64", "count", "exit code, 128 + N for a signal; -1 = not known"),
        Column("threads", "u32", "count", "threads in the trace"),
        Column("faults", "u64", "count", "its recorded page faults"),
        Column("from_disk", "u64", "count", "those of them that read from a disk"),
        Column("snapshot_ns", "u64", "ns", "of its last whole snapshot; 0 = none, and the next two are not known"),
        Column("resident", "u64", "count", "what was in memory at that time", unit="bytes"),
        Column("private", "u64", "count", "the part of it that no other process had", unit="bytes"),
    ),
)
#: the columns of page_fault that a column of `faults` is made of, where they are not those of its own name
_MADE_OF = {
    "process": ("time_ns",), "thread": ("tid", "time_ns"), "from_disk": ("flags",), "in_kernel": ("flags",),
    "access": ("flags",), "pc_function": ("pc", "pc_mapping", "pc_file", "flags"),
    "own_line": (), "function": (), "package": (),
}  # fmt: skip
_HOSTS = 1 << 16
#: Behind all numbers of threads.
_NO_THREAD = (1 << 64) - 1


def fault_batches(trace: TraceFile, wanted: Sequence[str]) -> Iterator[Batch]:
    """The page faults, with the wanted ones of the columns of FAULTS as far as the trace has what they are made of."""
    needed = {"pid", "host"}.union(*(_MADE_OF.get(name, (name,)) for name in wanted))
    names, strings = Names(trace), trace.strings
    symbolizer = symbolizer_of(trace.info, [trace.mappings])
    causes: dict[str, NDArray[Any]] = {}
    if names_of_owners := [name for name in wanted if name in OWNERS]:
        past = Past(trace, (("exit", ()),))
        causes = owners(past, past.inputs[0].faults["cell"], strings, names_of_owners)
    done = 0
    for batch in trace.batches(PAGE_FAULT.name, sorted(needed)):
        columns: dict[str, NDArray[Any]] = {name: batch[name] for name in wanted if name in batch}
        if "process" in wanted:
            columns["process"] = names.at(batch, batch["pid"])
        if "thread" in wanted:
            columns["thread"] = names.at(batch, batch["tid"])
        if "flags" in batch:
            columns |= {name: values for name, values in _decoded(batch["flags"]).items() if name in wanted}
        if "pc_function" in wanted:
            index, places = symbolizer.coded(batch, "pc", "pc_mapping", "pc_file")
            codes = strings.codes(label_of(place, "function") for place in places)
            columns["pc_function"] = np.array(codes or [0], "<u4")[index]
        for name, codes_of in causes.items():
            columns[name] = codes_of[done : done + len(batch)]
        done += len(batch)
        yield Batch(FAULTS, columns, strings=strings, rows=len(batch))


def _decoded(flags: NDArray[Any]) -> dict[str, NDArray[Any]]:
    known = (flags & FAULT_ACCESS_KNOWN) != 0
    access = np.where(flags & FAULT_EXECUTE, 3, np.where(flags & FAULT_WRITE, 2, 1))
    return {
        "from_disk": ((flags & FAULT_MAJOR) != 0).astype("|u1"),
        "in_kernel": ((flags & FAULT_PC_KERNEL) != 0).astype("|u1"),
        "access": np.where(known, access, 0).astype("|u1"),
    }


class Names:
    """The names that processes and threads had at a time, from the rows of PROCESS."""

    def __init__(self, trace: TraceFile) -> None:
        self._numbers, rows = Processes(_HOSTS), trace.processes
        absent = np.zeros(len(rows), "<u8")
        name, time, tid = (rows.columns.get(column, absent) for column in ("name", "time_ns", "tid"))
        named = np.lexsort((time, self._keys(rows, tid)))
        named = named[name[named] != 0]
        thread = self._keys(rows, tid)[named]
        self._threads, self._first = np.unique(np.append(thread, np.uint64(_NO_THREAD)), return_index=True)
        self._times = np.unique(time[named])
        self._places = self._placed(self._threads.searchsorted(thread), time[named])
        self._names = np.append(name[named], 0).astype("<u4")

    def _placed(self, threads: NDArray[np.intp], times: NDArray[Any]) -> NDArray[np.intp]:
        """Numbers that ascend by thread, and of one thread by time."""
        return threads * (len(self._times) + 1) + self._times.searchsorted(times, "right")

    def at(self, batch: Batch, tids: NDArray[Any]) -> NDArray[np.uint32]:
        """The codes of the names of the threads at the times of a batch's rows, shape (n,); 0 = not known.

        A thread without a name of its own has its process's. Before its first name a thread has that one.
        """
        times = batch.columns.get("time_ns")
        if times is None:
            times = np.full(len(batch), batch.window[1], np.uint64)
        own, process = (self._of(self._keys(batch, ids), times) for ids in (tids, batch["pid"]))
        return np.where(own == 0, process, own)

    def _of(self, keys: NDArray[np.uint64], times: NDArray[Any]) -> NDArray[np.uint32]:
        thread = self._threads.searchsorted(keys)
        row = self._places.searchsorted(self._placed(thread, times), "right") - 1
        found = self._names[np.maximum(row, self._first[thread])]
        return np.where(self._threads[thread] == keys, found, np.uint32(0))

    def _keys(self, batch: Batch, tids: NDArray[Any]) -> NDArray[np.uint64]:
        """A thread of one host as one number."""
        return self._numbers.numbers(batch.columns.get("host"), tids)


def processes_batch(trace: TraceFile) -> Batch:
    """A row for each process of the trace, in order of pid."""
    numbers, rows = Processes(_HOSTS), trace.processes
    absent = np.zeros(len(rows), "<u8")
    pid, tid, event, time = (rows.columns.get(name, absent) for name in ("pid", "tid", "event", "time_ns"))
    processes = numbers.numbers(rows.columns.get("host"), pid)
    faults, majors = Counter[int](), Counter[int]()
    for batch in trace.batches(PAGE_FAULT.name, ("pid", "flags", "host")):
        owners_of = numbers.numbers(batch.columns.get("host"), batch["pid"])
        for counts, some in ((faults, owners_of), (majors, owners_of[(batch["flags"] & FAULT_MAJOR) != 0])):
            counts.update(dict(zip(*(part.tolist() for part in np.unique(some, return_counts=True)), strict=True)))
    snapshots = _last_snapshots(trace, numbers)
    every = np.unique(np.array([*processes.tolist(), *faults, *snapshots], np.uint64))
    found: dict[str, NDArray[Any]] = {c.name: np.zeros(len(every), DTYPES[c.type]) for c in PROCESSES.columns}
    found["code"][:] = -1
    for place, number in enumerate(every.tolist()):
        found["pid"][place], found["faults"][place], found["from_disk"][place] = (
            numbers.pid(number), faults[number], majors[number])  # fmt: skip
        for name, value in zip(("snapshot_ns", "resident", "private"), snapshots.get(number, ()), strict=False):
            found[name][place] = value
    at = every.searchsorted(processes)
    order = np.argsort(time, kind="stable")
    found["began_ns"][at[order[::-1]]] = time[order[::-1]]  # of several rows the last one stands
    own = order[(tid == pid)[order]]
    for name in ("ppid", "name"):
        values = rows.columns.get(name, absent)
        known = own[values[own] != 0]
        found[name][at[known]] = values[known]
    ended = own[event[own] == PROCESS_EXIT]
    found["ended_ns"][at[ended]] = time[ended]
    if "code" in rows:
        found["code"][at[ended]] = rows["code"][ended]
    threads = np.unique(np.stack((at, tid.astype(np.intp))), axis=1)[0]
    found["threads"][:] = np.bincount(threads, minlength=len(every))
    return Batch(PROCESSES, found, strings=trace.strings, rows=len(every))


def _last_snapshots(trace: TraceFile, numbers: Processes) -> dict[int, list[int]]:
    """Number of a process -> time, resident and private bytes of its last whole snapshot."""
    size = trace.info.page_size or 4096

    def count(sums: list[int], batch: Batch) -> None:
        pages = batch["pages"].astype(np.int64)
        private = pages[(batch["flags"] & PAGE_EXCLUSIVE) != 0] if "flags" in batch else pages[:0]
        sums[:] = (
            batch.snapshot.time_ns if batch.snapshot else 0,
            sums[1] + int(pages.sum()) * size,
            sums[2] + int(private.sum()) * size,
        )

    taken: LastSnapshots[list[int]] = LastSnapshots(lambda: [0, 0, 0], count)
    for batch in trace.batches(RESIDENT_PAGES.name, ("pages", "flags")):
        taken.add(batch)
    return {numbers.number(host, pid): sums for (host, pid), sums in taken}
