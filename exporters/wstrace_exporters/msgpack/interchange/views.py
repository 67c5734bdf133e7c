"""The views `faults` and `processes` of a query: rows with names where the streams have ids, codes and flags."""

from __future__ import annotations

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
        Column("threads", "u32", "count", "threads that the trace tells of"),
        Column("faults", "u64", "count", "its recorded page faults"),
        Column("from_disk", "u64", "count", "those of them that read from a disk"),
        Column(
            "looked_ns", "u64", "ns", "the time of its last whole snapshot; 0 = none, and the next two are not known"
        ),
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
_OWNERS = {"own_line": "line", "function": "function", "package": "package"}
_HOSTS = 1 << 16


def fault_batches(trace: TraceFile, wanted: Sequence[str]) -> Iterator[Batch]:
    """The page faults, with the wanted ones of the columns of FAULTS as far as the trace has what they are made of."""
    needed = {"pid", "host"}.union(*(_MADE_OF.get(name, (name,)) for name in wanted))
    names, strings = Names(trace), trace.strings
    symbolizer = symbolizer_of(trace.info, [trace.mappings])
    causes = _owners(trace, [name for name in wanted if name in _OWNERS])
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


def _owners(trace: TraceFile, wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Of each fault of the trace the codes of its labels, in the order of the file."""
    found: dict[str, NDArray[Any]] = {}
    if not wanted:
        return found
    past = Past(trace, (("exit", ()),))
    for name in wanted:
        labels = past.labels(_OWNERS[name])
        codes = np.array([trace.strings.code(label.text) for (label,) in labels.labels], "<u4")
        found[name] = codes[labels.of[past.inputs[0].faults["cell"]]]
    return found


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
        self._numbers = Processes(_HOSTS)
        rows = trace.processes
        absent = np.zeros(len(rows), "<u8")
        named = rows.columns.get("name", absent) != 0
        thread = self._keys(rows, rows.columns.get("tid", absent))[named]
        time = rows.columns.get("time_ns", absent)[named].astype(np.uint64)
        order = np.lexsort((time, thread))
        self._threads, start = np.unique(thread[order], return_index=True)
        self._start = np.append(start, len(order))
        self._time, self._name = time[order], rows.columns.get("name", absent)[named][order].astype("<u4")

    def at(self, batch: Batch, tids: NDArray[Any]) -> NDArray[np.uint32]:
        """The codes of the names of the threads at the times of a batch's rows, shape (n,); 0 = not known.

        A thread without a name of its own has its process's. Before its first name a thread has that one.
        """
        times = batch.columns.get("time_ns")
        if times is None:
            times = np.full(len(batch), batch.window[1], np.uint64)
        found = self._of(self._keys(batch, tids), times)
        unnamed = np.flatnonzero(found == 0)
        if len(unnamed):
            found[unnamed] = self._of(self._keys(batch, batch["pid"])[unnamed], times[unnamed])
        return found

    def _of(self, keys: NDArray[np.uint64], times: NDArray[Any]) -> NDArray[np.uint32]:
        found = np.zeros(len(keys), "<u4")
        distinct, inverse = np.unique(keys, return_inverse=True)
        at = self._threads.searchsorted(distinct)
        for number, place in enumerate(at.tolist()):
            if place < len(self._threads) and self._threads[place] == distinct[number]:
                low, high = int(self._start[place]), int(self._start[place + 1])
                rows = np.flatnonzero(inverse == number) if len(distinct) > 1 else slice(None)
                last = self._time[low:high].searchsorted(times[rows], "right") - 1
                found[rows] = self._name[low + np.maximum(last, 0)]
        return found

    def _keys(self, batch: Batch, tids: NDArray[Any]) -> NDArray[np.uint64]:
        """A thread of one host as one number."""
        return self._numbers.numbers(batch.columns.get("host"), tids)


def processes_batch(trace: TraceFile) -> Batch:
    """A row for each process that the trace tells of, in order of pid."""
    numbers, strings = Processes(_HOSTS), trace.strings
    rows = trace.processes
    absent = np.zeros(len(rows), "<u8")
    processes = numbers.numbers(rows.columns.get("host"), rows.columns.get("pid", absent))
    faults, majors = _faults(trace, numbers)
    looks = _looks(trace, numbers)
    every = sorted({*processes.tolist(), *faults, *looks})
    place = {number: n for n, number in enumerate(every)}
    found: dict[str, NDArray[Any]] = {c.name: np.zeros(len(every), f"<{c.type[0]}{int(c.type[1:]) // 8}")
                                      for c in PROCESSES.columns}  # fmt: skip
    found["pid"][:] = [numbers.pid(number) for number in every]
    found["code"][:] = -1
    for name, values in (("faults", faults), ("from_disk", majors)):
        found[name][:] = [values.get(number, 0) for number in every]
    for number, (time, resident, private) in looks.items():
        row = place[number]
        found["looked_ns"][row], found["resident"][row], found["private"][row] = time, resident, private
    _lives(found, rows, np.array([place[number] for number in processes.tolist()], np.intp))
    return Batch(PROCESSES, found, strings=strings, rows=len(every))


def _lives(found: dict[str, NDArray[Any]], rows: Batch, at: NDArray[np.intp]) -> None:
    """Fills in what the rows of PROCESS say of the processes at these positions."""
    if not len(rows):
        return
    absent = np.zeros(len(rows), "<u8")
    pid, tid, event, time = (rows.columns.get(name, absent) for name in ("pid", "tid", "event", "time_ns"))
    order = np.argsort(time, kind="stable")
    own = order[(tid == pid)[order]]
    first = order[::-1]
    found["began_ns"][at[first]] = time[first]  # of several rows the last one stands
    for name in ("ppid", "name"):
        values = rows.columns.get(name, absent)
        known = own[values[own] != 0]
        found[name][at[known]] = values[known]
    ended = own[event[own] == PROCESS_EXIT]
    found["ended_ns"][at[ended]] = time[ended]
    if "code" in rows:
        found["code"][at[ended]] = rows["code"][ended]
    pairs = np.unique(np.stack((at.astype(np.int64), tid.astype(np.int64))), axis=1)
    found["threads"][:] = np.bincount(pairs[0], minlength=len(found["pid"]))


def _faults(trace: TraceFile, numbers: Processes) -> tuple[dict[int, int], dict[int, int]]:
    """Number of a process -> its faults, and those of them that read from a disk."""
    all_of: dict[int, int] = {}
    majors: dict[int, int] = {}
    for batch in trace.batches(PAGE_FAULT.name, ("pid", "flags", "host")):
        processes = numbers.numbers(batch.columns.get("host"), batch["pid"])
        major = (batch["flags"] & FAULT_MAJOR) != 0
        for counts, rows in ((all_of, processes), (majors, processes[major])):
            for number, n in zip(*(part.tolist() for part in np.unique(rows, return_counts=True)), strict=True):
                counts[number] = counts.get(number, 0) + n
    return all_of, majors


def _looks(trace: TraceFile, numbers: Processes) -> dict[int, tuple[int, int, int]]:
    """Number of a process -> time, resident and private bytes of its last whole snapshot."""
    size = trace.info.page_size or 4096

    def count(sums: list[int], batch: Batch) -> None:
        pages = batch["pages"].astype(np.int64)
        private = (batch["flags"] & PAGE_EXCLUSIVE) != 0 if "flags" in batch else np.zeros(len(batch), np.bool_)
        sums[0] = batch.snapshot.time_ns if batch.snapshot else 0
        sums[1] += int(pages.sum()) * size
        sums[2] += int(pages[private].sum()) * size

    taken: LastSnapshots[list[int]] = LastSnapshots(lambda: [0, 0, 0], count)
    for batch in trace.batches(RESIDENT_PAGES.name, ("pages", "flags")):
        taken.add(batch)
    return {numbers.number(host, pid): (sums[0], sums[1], sums[2]) for (host, pid), sums in taken}
