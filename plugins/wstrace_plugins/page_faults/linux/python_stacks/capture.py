"""Python stacks of a trace: the programs on its events, what they tell, and which process runs which CPython."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace.schema import (
    ADDRESS_SPACE,
    HOW_BEFORE_PYTHON,
    HOW_EXACT,
    HOW_LOST,
    HOW_NO_INTERPRETER,
    HOW_NO_PYTHON,
    HOW_NOT_PYTHON,
    HOW_NOT_READABLE,
    HOW_NOT_YET,
    HOW_UNKNOWN,
    MAP_EXECUTE,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_EXIT,
    PROCESS_FORK,
    STACK_HOW,
)
from wstrace_plugins.os.linux.cpython.elf import Python
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.python_stacks import NoStacks, bpf
from wstrace_plugins.page_faults.linux.python_stacks.interpreters import (
    File,
    Files,
    History,
    Interpreters,
    command_of,
    is_library,
    named_in,
)
from wstrace_plugins.page_faults.linux.python_stacks.kernel import (
    load_entry,
    load_walker,
    output_attributes,
    this_kernel,
)
from wstrace_plugins.page_faults.linux.python_stacks.maps import WALKERS, Maps
from wstrace_plugins.page_faults.linux.python_stacks.programs.gate import Gate
from wstrace_plugins.page_faults.linux.python_stacks.protocol import (
    HOW_OF_STATUS,
    NEEDS,
    STATUS_BITS,
    WAITING,
    S,
    StackRows,
)
from wstrace_plugins.page_faults.linux.rings import MAJOR, Ring

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace_plugins.os.linux.cpython.elf import Python
    from wstrace_plugins.os.linux.cpython.layouts import Layout
    from wstrace_plugins.page_faults.linux.python_stacks.decoder import Decoder

#: how the kernel itself writes a device (MKDEV in include/linux/kdev_t.h)
_MINOR_BITS = 20
_KEY, _RUNTIME, _ALL_BITS = struct.Struct("<QIIQ"), struct.Struct("<QQ"), (1 << 64) - 1
_ENABLED = struct.pack("<I", 0), struct.pack("<Q", 1)


def tell_files(maps: Maps, files: Files, python: Python, walker: int) -> None:
    """Tells the programs of the files that a CPython is in.

    Args:
        maps: the programs' memory.
        files: the program, and the library that it needs, if the CPython is in that.
        python: the CPython.
        walker: the index of the program that reads its frames.

    Raises:
        OSError: the kernel refuses it.
    """
    if files.libpython is None:
        maps.programs.set(_key(files.program), _RUNTIME.pack(python.runtime - python.code & _ALL_BITS, walker))
    else:
        from_begin = python.runtime - (python.code - python.code_offset)
        maps.libraries.set(_key(files.libpython), _RUNTIME.pack(from_begin & _ALL_BITS, walker))
        maps.programs.set(_key(files.program), _RUNTIME.pack(0, NEEDS))
    maps.enabled.set(*_ENABLED)


def _key(file: File) -> bytes:
    """What the programs know a file by."""
    device = os.major(file.device) << _MINOR_BITS | os.minor(file.device)
    seconds, nanoseconds = divmod(file.changed_ns, 10**9)
    return _KEY.pack(file.inode, device, nanoseconds, seconds & _ALL_BITS)


_U32, _U64, _TOLD = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<QQQ")
#: while a process is about to map its CPython, its mappings are read so often, for so long
_LOOK_SECONDS, _LOOK_FOR_SECONDS = 0.0005, 5.0
_MOST_PROCESSES = 1 << 16
#: the most places where CPythons are looked for that a command may name
_MOST_NAMED = 16
#: instead of a walker: the process runs a CPython whose frames are not read
_REFUSED = -1


class PythonStacks(NoStacks):
    """The Python stacks of the faults of a source.

    Args:
        context: the session's.
        source: the name that its batches carry.
        cpus: the CPUs that are traced.
        gate: what hangs on the events, and leads to the programs from now on.
        interpreters: the files that were looked into.
        history: what the side band has told of processes.

    Raises:
        Unavailable: the kernel refuses, with what lifts that.
    """

    def __init__(
        self, context: Context, source: str, cpus: list[int], gate: Gate, interpreters: Interpreters, history: History
    ) -> None:
        self._context, self._source, self._interpreters, self._history = context, source, interpreters, history
        self._kernel = this_kernel()
        self._outputs: list[int] = []
        self._walkers: dict[tuple[Layout, tuple[int, int]], int] = {}
        self._programs: list[bpf.Program] = []
        self._maps = Maps(max(cpus) + 1)
        #: what walkers tell of stacks, and what reads that; None before there is a walker
        self._told: tuple[bpf.RingBuffer, Decoder] | None = None
        try:
            self._asked = bpf.RingBuffer(self._maps.asked)
            self._programs.append(load_entry(self._maps, self._kernel, gate))
            gate.lead_to(self._programs[0])
        except OSError:
            self._close_programs()
            raise
        self.by_ring: dict[Ring, StackRows] = {}
        #: pid -> when it was looked at, and the walker for its CPython; None = it runs none
        self._processes: dict[int, tuple[int, int | None]] = {}
        #: pid -> until when its CPython had no interpreter yet: so it was at that time, or at all times before it
        self._unborn: dict[int, int] = {}
        #: pid -> until when it is looked at: its program needs a CPython's library that it has not mapped yet
        self._expected: dict[int, float] = {}
        #: those of them that have not executed their program yet, or have not mapped it
        self._launched: set[int] = set()
        self._libraries: set[File] = set()  # that the programs were told of
        self._refused: set[str] = set()
        self._last: dict[str, int] = {}
        self._hows = np.zeros(len(STACK_HOW), "<i8")

    # -- arming ----------------------------------------------------------------------------------------------------

    def join(self, ring: Ring, rows: StackRows | None = None) -> StackRows:
        """Lets the programs write rows into a fault ring; returns what pairs them: `rows`, if that exists already."""
        fd = perf.perf_event_open(output_attributes(), -1, ring.cpu)
        self._outputs.append(fd)
        perf.ioctl(fd, perf.PERF_EVENT_IOC_SET_OUTPUT, ring.fd)
        perf.ioctl(fd, perf.PERF_EVENT_IOC_ENABLE)
        self._maps.outputs.set(_U32.pack(2 * ring.cpu + (ring.kind == MAJOR)), _U32.pack(fd))
        self.by_ring[ring] = rows or StackRows()
        return self.by_ring[ring]

    def expect(self, pid: int) -> None:
        """A launched process, before its execve(): the walkers of the CPythons that its command names are loaded before
        that. What a program learns from us while it runs comes too late on a busy machine.
        """
        words, environment = command_of(pid)
        if self._prepare(words[0], environment):
            self._expected[pid] = time.monotonic() + _LOOK_FOR_SECONDS
            self._launched.add(pid)
            return
        for root, paths in islice(named_in(words[2:], environment), _MOST_NAMED):
            any(self._prepare(path, environment, root) for path in paths)

    def foresee(self) -> None:
        """Loads the walkers for the CPythons that a child is likely to run: this one, and the `python3` of PATH.

        Without it, a child has run for 20 ms of CPU before the programs know its CPython: on a busy machine half of
        the 60 MiB that one filled at once had no Python line.
        """
        import shutil  # 3 ms, which a launched Python does not pay

        for path in {sys.executable, shutil.which("python3") or ""}:
            self._prepare(path, os.environ)

    def _prepare(self, path: str, environment: Mapping[str, str], root: str = "") -> bool:
        """Loads the walker for the CPython that a command will run, if it is one; tells the programs of its file."""
        python, _, files = self._interpreters.of_command(path, environment, root)
        return python is not None and python.layout is not None and self._tell(python, files) is not None

    def _tell(self, python: Python, files: Files | None, pid: int = 0, at: int = 0) -> int | None:
        """Tells the programs of a CPython's files, and of a process that runs it; its walker, None = refused."""
        assert python.layout is not None
        try:
            walker = self._walker(python.layout, python.static)
            if files is not None:
                tell_files(self._maps, files, python, walker)
                if files.libpython is not None:
                    self._libraries.add(files.libpython)
            if pid:
                salt = int.from_bytes(os.urandom(8), "little") | 1
                self._maps.told.set(_U64.pack(pid), _TOLD.pack(salt, at, walker))
        except OSError as error:
            self._refuse(f"the kernel refuses the program that reads CPython's frames ({error.strerror})")
            return None
        return walker

    def _walker(self, layout: Layout, static: tuple[int, int]) -> int:
        """The index of the program for that layout and static data, loaded if it is new. Raises OSError."""
        if (layout, static) not in self._walkers:
            index = len(self._walkers)
            if index >= WALKERS:
                raise OSError(errno.ENOSPC, "there are programs for as many CPythons as can be held")
            loaded = load_walker(self._maps, layout, b"py%d%d" % layout.version, static)
            self._programs.append(loaded)
            if self._told is None:
                self._told = bpf.RingBuffer(self._maps.records), self._new_decoder()
            self._maps.walkers.set(_U32.pack(index), _U32.pack(loaded.fd))
            self._walkers[layout, static] = index
        return self._walkers[layout, static]

    def _new_decoder(self) -> Decoder:
        from wstrace.call_sites import CallSites
        from wstrace_plugins.page_faults.linux.python_stacks.decoder import Decoder

        strings = self._context.strings
        sites = CallSites(self._context.stack_ids, strings, self._source)
        return Decoder(sites, strings)

    # -- which process runs what -----------------------------------------------------------------------------------

    @property
    def fds(self) -> Sequence[int]:
        """Readable when there is a process to look at."""
        return (self._maps.asked.fd,)

    def look_at_processes(self, wait: float) -> float:
        """Looks at the processes that the programs ask about, and at those that are about to map their CPython.

        Returns:
            The seconds until the next look, at most `wait`.
        """
        now = time.monotonic()
        for record in self._asked.read():
            self._expected.setdefault(int.from_bytes(record, "little"), now + _LOOK_FOR_SECONDS)
        for pid, until in list(self._expected.items()):
            if self.look(pid) or now > until:
                del self._expected[pid]
                self._launched.discard(pid)
        return min(wait, _LOOK_SECONDS) if self._expected else wait

    def look(self, pid: int) -> bool:
        """Tells the programs which CPython the process runs; False while its program has still to map it."""
        since = now_ns()
        try:
            found, coming = self._interpreters.of_process(pid)
        except Unavailable:
            return True
        if found is None:
            coming = coming or pid in self._launched
            if not coming:
                self._processes[pid] = (since, None)
            return not coming
        if len(self._processes) >= _MOST_PROCESSES:
            self._processes.clear()
        self._processes[pid] = (since, _REFUSED)
        if found.python.layout is None:
            self._refuse(found.python.refused)
            return True
        index = self._tell(found.python, found.files, pid, found.at)
        if index is None:
            return True
        self._maps.enabled.set(_U32.pack(0), _U64.pack(1))
        self._processes[pid] = (since, index)
        return True

    def _refuse(self, why: str) -> None:
        """Says once that the frames of a process are not read, and why."""
        if why not in self._refused:
            self._refused.add(why)
            self._context.info.lack(f"Python stacks of a process: {why}")

    def saw(self, batch: Batch) -> None:
        """Learns from what happened to processes and their mappings, in order of time."""
        if batch.schema is PROCESS:
            rows = (batch["pid"] == batch["tid"]) & np.isin(batch["event"], (PROCESS_EXEC, PROCESS_EXIT, PROCESS_FORK))
            columns = (batch[name][rows].tolist() for name in ("event", "pid", "ppid", "time_ns"))
            for event, pid, ppid, time_ns in zip(*columns, strict=True):
                if event != PROCESS_FORK:
                    self._forget(pid, time_ns)
                elif self._processes.get(ppid, (time_ns, None))[0] < time_ns:
                    # A later look at the parent says nothing of the child, which may have executed another program.
                    self._processes.setdefault(pid, self._processes[ppid])
        elif batch.schema is ADDRESS_SPACE:  # a program that loads a CPython later
            rows = (batch["flags"] & MAP_EXECUTE) != 0
            # A set, because np.unique imports numpy.ma: 12 ms of every start.
            for pid, file in sorted(set(zip(batch["pid"][rows].tolist(), batch["file"][rows].tolist(), strict=True))):
                if is_library(self._context.strings[file]) and self._processes.get(pid, (0, None))[1] is None:
                    self.look(pid)

    def _forget(self, pid: int, time_ns: int) -> None:
        """The process executed another program, or ended, at that time: what was learned before it is void."""
        since, _ = self._processes.get(pid, (0, None))
        if since < time_ns:
            self._processes.pop(pid, None)
            self._unborn.pop(pid, None)
            with contextlib.suppress(OSError):
                self._maps.told.delete(_U64.pack(pid))

    # -- stacks ----------------------------------------------------------------------------------------------------

    def new_sites(self) -> Iterator[Batch]:
        """The call sites of the stacks that came since the last call. Call it after the fault rings were read."""
        if self._told is None:
            return
        records, decoder = self._told
        batch = decoder.take(records.read())
        if batch is not None:
            yield batch

    def with_stacks(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The columns of faults with `stack` and `stack_how`, from their `stack_hash`."""
        hashes, pids = columns["stack_hash"], columns["pid"]
        changes = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])) if len(hashes) else np.zeros(0, np.intp)
        keys = distinct(hashes[changes])
        where = keys.searchsorted(hashes[changes])
        leaves, hows = np.zeros(len(keys), "<u4"), np.zeros(len(keys), "|u1")
        for i, key in enumerate(keys.tolist()):
            known = self._told[1].leaf(key) if self._told is not None else None
            if known is not None:
                leaves[i], hows[i] = known
            else:
                hows[i] = HOW_OF_STATUS.get(key, HOW_UNKNOWN) if key < 1 << STATUS_BITS else HOW_LOST
        lengths = np.diff(np.append(changes, len(hashes)))
        stack, how = np.repeat(leaves[where], lengths), np.repeat(hows[where], lengths)
        times, unborn = columns["time_ns"], np.flatnonzero(how == HOW_BEFORE_PYTHON)
        if len(self._unborn) >= _MOST_PROCESSES:
            self._unborn.clear()
        for pid in distinct(pids[unborn]).tolist():
            self._unborn[pid] = max(self._unborn.get(pid, 0), int(times[unborn[pids[unborn] == pid]].max()))
        early = np.flatnonzero((how == HOW_NOT_YET) | (how == HOW_NOT_READABLE))
        for pid in distinct(pids[early]).tolist():
            mine = early[pids[early] == pid]
            why = self._early(pid, times[mine], hashes[mine] == WAITING)
            # _PyRuntime cannot be read before it was touched
            how[mine] = np.where((how[mine] == HOW_NOT_YET) | (why == HOW_BEFORE_PYTHON), why, how[mine])
        self._hows += np.bincount(how, minlength=len(self._hows))
        rest = {name: column for name, column in columns.items() if name != "stack_hash"}
        return {**rest, "stack": stack, "stack_how": how}

    def _early(self, pid: int, times: NDArray[Any], waiting: NDArray[Any]) -> NDArray[Any]:
        """Why faults of a process have no stack that came before the programs knew its CPython, or could read of it."""
        how = self._history.how(pid, times, waiting, self._libraries)
        if unborn := self._unborn.get(pid, 0):
            began = self._history.began(pid, unborn)
            proven = (times <= np.uint64(unborn)) & (times >= np.uint64(began))
            how[(how == HOW_UNKNOWN) & proven] = HOW_BEFORE_PYTHON
        since, walker = self._processes.get(pid, (0, 0))
        if walker is None:  # It runs none, but a program that it ran before may have been one.
            how[(how == HOW_UNKNOWN) & (times >= np.uint64(since))] = HOW_NOT_PYTHON
        how[how == HOW_UNKNOWN] = HOW_NO_INTERPRETER if walker == _REFUSED else HOW_NOT_YET
        return how

    # -- account ---------------------------------------------------------------------------------------------------

    def _count(self, place: int) -> int:
        """A count of the programs, of all CPUs."""
        raw = self._maps.scratch.get(_U32.pack(0)) or b""
        return int(np.frombuffer(raw, "<u8").reshape(-1, (S.BYTES + 7) // 8)[:, place // 8].sum())

    def rows_lost(self, kind: str) -> int:
        """The stack rows of a kind of faults that found no room in their ring."""
        return self._count(S.ROWS_LOST + 8 * (kind == MAJOR))

    def reasons(self) -> Mapping[str, int]:
        """Why faults have no stack -> how many; those that run no Python are not counted."""
        having = (HOW_EXACT, HOW_NO_PYTHON, HOW_BEFORE_PYTHON, HOW_NOT_PYTHON)
        return {STACK_HOW[how]: n for how, n in enumerate(self._hows.tolist()) if n and how not in having}

    def statistics(self) -> dict[str, int]:
        """What the programs and their reader counted."""
        if self._maps.scratch.fd < 0:
            return self._last
        return {
            "stack_rows": sum(rows.rows for rows in self.by_ring.values()),
            "stack_records_lost": self._count(S.RECORDS_LOST),
            "stack_code_unreadable": self._count(S.UNREADABLE),
            "stack_searches": self._count(S.SEARCHES),
            **(self._told[1].statistics() if self._told is not None else {}),
        }

    # -- end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes programs, maps and events."""
        self._last = self.statistics()
        if self._told is not None:
            self._told[0].close()
        self._asked.close()
        self._close_programs()

    def _close_programs(self) -> None:
        for fd in self._outputs:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._outputs.clear()
        for one in self._programs:
            one.close()
        self._maps.close()

    def after_fork_in_child(self) -> None:
        """In a forked child: closes the copied descriptors."""
        self._close_programs()
