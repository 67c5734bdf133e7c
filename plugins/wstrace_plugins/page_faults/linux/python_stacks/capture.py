"""Python stacks of a trace: a gate on its events all the time, and behind it the programs, once a CPython may come."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.analysis.tally import distinct, numbered
from wstrace.batch import Batch, Columns
from wstrace.clock import now_ns
from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace.schema import HOW_EXACT, HOW_LOST, HOW_NO_PYTHON, HOW_NOT_KNOWN, HOW_NOT_READABLE, HOW_UNKNOWN, STACK_HOW
from wstrace_plugins.page_faults import Stacks
from wstrace_plugins.page_faults.linux.python_stacks.interpreters import (
    History,
    Interpreters,
    Looked,
    command_of,
    named_in,
    program_of,
)
from wstrace_plugins.page_faults.linux.python_stacks.programs.common import Gate
from wstrace_plugins.page_faults.linux.python_stacks.protocol import (
    ANY_LIFE,
    EMPTY,
    HOW_OF_STATUS,
    NOT_KNOWN,
    STATUS_BITS,
    UNBORN,
    UNTOUCHED,
    S,
    StackRows,
)
from wstrace_plugins.page_faults.linux.rings import MAJOR, Ring

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace_plugins.page_faults.linux.python_stacks.decoder import Decoder
    from wstrace_plugins.page_faults.linux.python_stacks.kernel import Programs

_select: Any = select  # When mypy checks for Windows, the POSIX half has no types.
#: the most places where CPythons are looked for that a command may name
_MOST_NAMED = 16
_MOST_READ = 1 << 14


class PythonStacks:
    """The Python stacks of the faults of a source. Where none are wanted, its methods do nothing.

    The programs are opened when a process is a CPython, or is able to start one: no other command pays for them.
    wanted: which stacks the faults are to carry. context: the session's. source: the name that its batches carry. cpus:
    the CPUs that are traced. Raises Unavailable: they were requested by name and cannot be had.
    """

    def __init__(self, wanted: Stacks, context: Context, source: str, cpus: Sequence[int]) -> None:
        self._wanted, self._context, self._source, self._cpus = wanted, context, source, cpus
        self._interpreters = Interpreters()
        self._history = History(context.strings, self._interpreters)
        #: what keeps samples of CPythons from being taken, too; None = it cannot be had
        self.gate: Gate | None = None
        self._programs: Programs | None = None
        self._decoder: Decoder | None = None
        self._opened = self._foreseen = not wanted.python
        self._rows: dict[Ring, StackRows] = {}
        self._poll: Any = None
        self._refused: set[str] = set()
        self._hows = np.zeros(len(STACK_HOW), "<i8")
        self._read: set[int] = set()  # processes that had an interpreter
        if wanted.python:
            self._poll = _select.epoll()
            try:
                self.gate = Gate()
            except (Unavailable, OSError) as error:
                self._no = error
            if wanted.required:
                self._open()

    def _open(self) -> bool:
        """Whether the programs are there; opens them, once. Raises Unavailable where they were requested by name."""
        if self._opened:
            return self._programs is not None
        self._opened = True
        from wstrace_plugins.page_faults.linux.python_stacks.kernel import Programs, refusal

        try:
            if self.gate is None:
                raise self._no
            others, groups = not self._wanted.required, bool(self._context.groups)
            self._programs = Programs(self._cpus, self.gate, others=others, groups=groups)
            for ring in self._rows:
                self._programs.join(ring)
        except (Unavailable, OSError) as error:
            no = error if isinstance(error, Unavailable) else refusal(error)
            if self._wanted.required:
                raise no from None
            self._context.info.lack(f"Python stacks: {no}")
            return False
        self._poll.register(self._programs.maps.pending.fd)
        return True

    @property
    def fds(self) -> Sequence[int]:
        """Readable when there is a process to look at."""
        return () if self._poll is None else (self._poll.fileno(),)

    def join(self, ring: Ring) -> StackRows | None:
        """What pairs the rows that the programs write into a fault ring with its samples; None where there are none."""
        if not self._wanted.python:
            return None
        self._rows[ring] = StackRows()
        if self._programs is not None:
            self._programs.join(ring)
        return self._rows[ring]

    def attach(self, event: int, kind: str) -> None:
        """Hangs the gate on an event of that kind, before it counts. Tasks that are started inherit it."""
        if self.gate is not None:
            self.gate.attach(event, kind)

    def expect(self, pid: int) -> None:
        """Prepares for a launched process, before its execve(): for the CPythons that its command names, or may start.

        What a program learns from us while it runs comes too late on a busy machine.
        """
        if not self._wanted.python:
            return
        words, environment = command_of(pid)
        self._history.seen(pid)
        looked = self._interpreters.of_command(words[0], environment)
        if not self._report(looked) and (looked is None or looked.starts):
            self.foresee()
            self._report_named(words[2:], environment)
            if self._programs is not None and looked is not None and not looked.needs:
                self._programs.tell_process(pid)

    def foresee(self) -> None:
        """Loads the walkers for the CPythons that a child is likely to run: this one, and the `python3` of PATH.

        Without it, a child has run for 20 ms of CPU before the programs know its CPython: on a busy machine half of
        the 60 MiB that one filled at once had no Python line.
        """
        if not self._foreseen and self.gate is not None:
            self._foreseen = True
            if self._open():
                self._report_named((sys.executable, "python3"), os.environ)

    def _report_named(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        for root, paths in islice(named_in(words, environment), _MOST_NAMED):
            any(self._report(self._interpreters.of_command(path, environment, root)) for path in paths)

    def _report(self, looked: Looked | None, pid: int = 0, life: bytes = ANY_LIFE, at: int = 0) -> bool:
        """Whether a file has a CPython. The programs learn of it, and of a process that runs it, if one is given."""
        if looked is None or looked.python is None:
            return False
        if not self._open():
            return True
        assert self._programs is not None
        if looked.python.layout is None:
            if pid:
                self._refuse(looked.python.refused)
            return True
        try:
            walker = self._programs.walker(looked.python.layout, looked.python.static)
            self._programs.tell_file(looked.file, looked.python, walker)
            if pid:
                self._programs.tell_process(pid, life, at, walker)
        except OSError as error:
            self._refuse(f"the kernel refuses the program that reads CPython's frames ({error.strerror})")
            return True
        self._history.reported.setdefault(looked.file, now_ns())
        return True

    def _refuse(self, why: str) -> None:
        """Says once that the frames of a process are not read, and why."""
        if why and why not in self._refused:
            self._refused.add(why)
            self._context.info.lack(f"Python stacks of a process: {why}")

    def look_at_processes(self) -> None:
        """Looks at the processes that the programs want to know of, and at those that have mapped a further CPython."""
        new, self._history.new = self._history.new, set()
        pending = self._programs.pending() if self._programs is not None else ()
        for pid, life in (*pending, *dict.fromkeys(new, ANY_LIFE).items()):
            self.look(pid, life)

    def look(self, pid: int, life: bytes = ANY_LIFE) -> None:
        """Tells the programs which CPython the process runs, or has begun to execute, or that it is none.

        life: of that pid, which they want to know of.
        """
        if not self._wanted.python:
            return
        try:
            found = self._interpreters.of_process(pid)
        except Unavailable:  # it has ended
            return
        if found is not None:
            self._report(found[0], pid, life, found[1])
            return
        looked = self._interpreters.of_command(program_of(pid), command_of(pid)[1], f"/proc/{pid}/root")
        if self._report(looked):
            return
        if looked is not None and not looked.needs:
            self._history.seen(pid)
            if self._programs is not None:
                self._programs.tell_process(pid, life)
        if looked is None or looked.starts:
            self.foresee()

    def saw(self, batch: Batch) -> None:
        """Learns from what happened to processes and their mappings, in order of time."""
        if not self._wanted.python:
            return
        self._history.saw(batch)
        for why in self._history.refusals - self._refused:
            self._refuse(why)
        if self._history.met:
            self._open()
        elif self._history.others:
            self.foresee()

    def new_sites(self) -> Iterator[Batch]:
        """The call sites of the stacks that came since the last call. Call it after the fault rings were read."""
        if self._programs is None or not self._history.reported:
            return
        if self._decoder is None:
            from wstrace.call_sites import CallSites
            from wstrace_plugins.page_faults.linux.python_stacks.decoder import Decoder

            strings = self._context.strings
            self._decoder = Decoder(CallSites(self._context.stack_ids, strings, self._source), strings)
        if (batch := self._decoder.take(self._programs.records())) is not None:
            yield batch
        self._programs.forget(*self._decoder.forgotten())

    def with_stacks(self, columns: Columns) -> Columns:
        """The columns of faults with `stack` and `stack_how`, from their `stack_hash`."""
        hashes = columns.pop("stack_hash", None)
        if hashes is None or (self._opened and self._programs is None):
            return columns
        if self._programs is None:
            stack, how = np.zeros(len(hashes), "<u4"), np.full(len(hashes), HOW_NOT_KNOWN, "|u1")
        else:
            stack, how = self._found(hashes)
        self._explain(columns["pid"], columns["time_ns"], hashes, how)
        self._hows += np.bincount(how, minlength=len(self._hows))
        return {**columns, "stack": stack, "stack_how": how}

    def _found(self, hashes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The innermost frame of each stack by its hash, and how it was had."""
        keys, which = numbered(hashes)
        leaves, hows = np.zeros(len(keys), "<u4"), np.zeros(len(keys), "|u1")
        for i, key in enumerate(keys.tolist()):
            known = self._decoder.leaf(key) if self._decoder is not None else None
            if known is not None:
                leaves[i], hows[i] = known
            else:
                hows[i] = HOW_OF_STATUS.get(key, HOW_UNKNOWN) if key < 1 << STATUS_BITS else HOW_LOST
        return leaves[which], hows[which]

    def _explain(self, pids: NDArray[Any], times: NDArray[Any], hashes: NDArray[Any], how: NDArray[Any]) -> None:
        """Sets `how` to HOW_NO_PYTHON where it is proven that the process had no Python frame to read yet."""
        read = (hashes == EMPTY) | (hashes >= 1 << STATUS_BITS)
        early = (how == HOW_NOT_KNOWN) | (how == HOW_NOT_READABLE)
        for pid in distinct(pids[early]).tolist():
            of = np.flatnonzero(pids == pid)
            mine, unborn = of[early[of]], hashes[of] == UNBORN
            if pid not in self._read and len(self._read) < _MOST_READ:
                # what an interpreter has written stays in memory, or is swapped out: see UNTOUCHED
                unborn |= (hashes[of] == UNTOUCHED) & ~np.logical_or.accumulate(read[of])
            born_later = times[of[unborn]] + np.uint64(1)
            how[mine[self._history.proven(pid, times[mine], hashes[mine] == NOT_KNOWN, born_later)]] = HOW_NO_PYTHON
        if len(self._read) < _MOST_READ:
            self._read.update(distinct(pids[read]).tolist())

    def rows_lost(self, kind: str) -> int:
        """The stack rows of a kind of faults that found no room in their ring."""
        return self._programs.count(S.ROWS_LOST + 8 * (kind == MAJOR)) if self._programs is not None else 0

    def reasons(self) -> Mapping[str, int]:
        """Why faults have no stack -> how many; those that run no Python are not counted."""
        return {
            STACK_HOW[how]: n
            for how, n in enumerate(self._hows.tolist())
            if n and how not in (HOW_EXACT, HOW_NO_PYTHON)
        }

    def close(self) -> None:
        """Closes programs, maps and events."""
        if self._programs is not None:
            self._programs.close()
            self._programs = None
        for one in (self._poll, self.gate):
            if one is not None:
                one.close()
