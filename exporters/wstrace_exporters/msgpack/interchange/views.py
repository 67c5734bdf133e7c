"""The views `faults` and `processes` of a query: rows with names where the streams have ids, codes and flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.composition import Past
from wstrace.analysis.names import Processes
from wstrace.analysis.symbols import label_of, symbolizer_of
from wstrace.analysis.tally import numbered
from wstrace.batch import Batch, Columns
from wstrace.schema import (
    DTYPES,
    FAULT_ACCESS_KNOWN,
    FAULT_EXECUTE,
    FAULT_MAJOR,
    FAULT_PC_KERNEL,
    FAULT_WRITE,
    PAGE_FAULT,
    PROCESS_EXIT,
    Column,
    Schema,
)
from wstrace_exporters.msgpack.interchange.blame_tables import OWNERS, owners
from wstrace_exporters.msgpack.read.trace import TraceFile

ACCESSES = ("", "read", "write", "execute")
_OF_FAULTS = {column.name: column for column in (
    *PAGE_FAULT.columns,
    Column("process", "u32", "str", "the name of the process at that time"),
    Column("thread", "u32", "str", "the name of the thread at that time"),
    Column("pc_function", "u32", "str", "its module!function, else its module!section(n)"),
    Column("from_disk", "u8", "count", "1 = a major fault: it read from a disk"),
    Column("in_kernel", "u8", "count", "1 = taken in the kernel, on behalf of the process"),
    Column("access", "u8", "id", "what the instruction did; empty where the system does not say", words=ACCESSES),
    Column("own_line", "u32", "str", "the program's own line of the Python stack, else the instruction's function"),
    Column("function", "u32", "str", "the function of the Python stack, else of the instruction"),
    Column("package", "u32", "str", "the package or module that it belongs to"),
)}  # fmt: skip
FAULTS = Schema("faults", tuple(map(_OF_FAULTS.__getitem__, (
    "time_ns", "pid", "process", "tid", "thread", "cgroup", "va", "file", "kind", "pc", "pc_file", "pc_function",
    "from_disk", "in_kernel", "access", "own_line", "function", "package", "stack", "stack_how", "native_stack",
    "weight", "sampled",
))))  # fmt: skip
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
    ),
)
_HOSTS = 1 << 16
#: Behind all numbers of threads.
_NO_THREAD = (1 << 64) - 1


def fault_batches(trace: TraceFile, wanted: Sequence[str]) -> Iterator[Batch]:
    """The page faults, with the wanted ones of the columns of FAULTS as far as the trace has what they are made of."""
    strings, names = trace.strings, names_at(trace)
    symbolizer = symbolizer_of(trace.info, [trace.mappings])

    def access(batch: Batch) -> NDArray[Any]:
        did = np.where(batch["flags"] & FAULT_EXECUTE, 3, np.where(batch["flags"] & FAULT_WRITE, 2, 1))
        return np.where(batch["flags"] & FAULT_ACCESS_KNOWN, did, 0)

    def functions(batch: Batch) -> NDArray[Any]:
        index, places = symbolizer.coded(batch, "pc", "pc_mapping", "pc_file")
        codes = strings.codes(label_of(place, "function") for place in places)
        return np.array(codes or [0], "<u4")[index]

    #: a column -> those of page_fault that it is made of, and how, where they are not those of its own name
    made: dict[str, tuple[tuple[str, ...], Callable[[Batch], NDArray[Any]]]] = {
        "process": (("pid",), lambda batch: names(batch, batch["pid"])),
        "thread": (("tid",), lambda batch: names(batch, batch["tid"])),
        "from_disk": (("flags",), lambda batch: batch["flags"] & FAULT_MAJOR != 0),
        "in_kernel": (("flags",), lambda batch: batch["flags"] & FAULT_PC_KERNEL != 0),
        "access": (("flags",), access),
        "pc_function": (("pc", "pc_mapping", "pc_file", "flags"), functions),
    }
    causes: Columns = {}
    if names_of_owners := [name for name in wanted if name in OWNERS]:
        past = Past(trace, (("exit", ()),))
        causes = owners(past, past.inputs[0].faults["cell"], strings, names_of_owners)
    own = {name: made.get(name, ((name,), itemgetter(name))) for name in wanted if name not in causes}
    needed, done = {"pid", "host", "time_ns"}.union(*(columns for columns, _ in own.values())), 0
    for batch in trace.batches(PAGE_FAULT.name, sorted(needed)):
        found = {name: make(batch) for name, (columns, make) in own.items() if set(batch).issuperset(columns[:1])}
        found |= {name: codes[done : done + len(batch)] for name, codes in causes.items()}
        columns = {c.name: found[c.name].astype(DTYPES[c.type], copy=False) for c in FAULTS.columns if c.name in found}
        yield Batch(FAULTS, columns, strings=strings, rows=len(batch))
        done += len(batch)


def names_at(trace: TraceFile) -> Callable[[Batch, NDArray[Any]], NDArray[np.uint32]]:
    """A function that gives the names of threads at the times of a batch's rows, as codes, shape (n,); 0 = not known.

    A thread without a name of its own has its process's. Before its first name a thread has that one.
    """
    numbers, rows = Processes(_HOSTS), trace.processes
    absent = np.zeros(len(rows), "<u8")
    name, time, tid = (rows.columns.get(column, absent) for column in ("name", "time_ns", "tid"))
    key = numbers.numbers(rows.columns.get("host"), tid)
    named = np.lexsort((time, key))
    named = named[name[named] != 0]
    threads, first = np.unique(np.append(key[named], np.uint64(_NO_THREAD)), return_index=True)
    times, codes = np.unique(time[named]), np.append(name[named], 0).astype("<u4")

    def placed(thread: NDArray[np.intp], at: NDArray[Any]) -> NDArray[np.intp]:
        """Numbers that ascend by thread, and of one thread by time."""
        return thread * (len(times) + 1) + times.searchsorted(at, "right")

    places = placed(threads.searchsorted(key[named]), time[named])

    def of(batch: Batch, tids: NDArray[Any], at: NDArray[Any]) -> NDArray[np.uint32]:
        keys = numbers.numbers(batch.columns.get("host"), tids)
        thread = threads.searchsorted(keys)
        row = places.searchsorted(placed(thread, at), "right") - 1
        return np.where(threads[thread] == keys, codes[np.maximum(row, first[thread])], np.uint32(0))

    def names(batch: Batch, tids: NDArray[Any]) -> NDArray[np.uint32]:
        at = batch.columns.get("time_ns", np.full(len(batch), batch.window[1], np.uint64))
        own, process = of(batch, tids, at), of(batch, batch["pid"], at)
        return np.where(own == 0, process, own)

    return names


def processes_batch(trace: TraceFile) -> Batch:
    """A row for each process of the trace, in order of pid."""
    numbers, rows = Processes(_HOSTS), trace.processes
    absent = np.zeros(len(rows), "<u8")
    pid, tid, event, time = (rows.columns.get(name, absent) for name in ("pid", "tid", "event", "time_ns"))
    every, at = numbered(numbers.numbers(rows.columns.get("host"), pid))
    found: Columns = {c.name: np.zeros(len(every), DTYPES[c.type]) for c in PROCESSES.columns}
    found["pid"][at], found["code"][:] = pid, -1
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
