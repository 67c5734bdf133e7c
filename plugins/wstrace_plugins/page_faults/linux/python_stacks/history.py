"""What the side band proves of a fault that has no stack: its process had mapped no CPython when it came.

A process that has ended cannot be looked at any more, but the records of its programs and mappings are there: its
program is the first file with code that it maps after an exec, and what is no CPython and needs none runs none until it
maps one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.schema import (
    ADDRESS_SPACE,
    HOW_BEFORE_PYTHON,
    HOW_NOT_PYTHON,
    HOW_UNKNOWN,
    MAP_EXECUTE,
    PROCESS,
    PROCESS_EXEC,
    PROCESS_FORK,
)
from wstrace_plugins.page_faults.linux.python_stacks.interpreters import Interpreters, is_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_PROCESSES, _MOST_PROGRAMS, _MOST_FILES = 1 << 16, 64, 1 << 14
_COLUMNS = ("pid", "time_ns", "file", "dev", "ino")


class _Program:
    """A program in execution: shared by the processes that are forked from the one that executed it.

    known: its file was looked into. python: it is a CPython, or needs one. mapped: when it mapped one; None = not yet.
    """

    __slots__ = ("known", "mapped", "python", "started")

    def __init__(self, *, known: bool = False) -> None:
        self.started, self.known, self.python = known, known, False
        self.mapped: int | None = None


class _Since(NamedTuple):
    """From that time on a process executes a program."""

    time_ns: int
    program: _Program


class History:
    """The programs of all processes, by time.

    Args:
        strings: the dictionary of the names of mapped files.
        interpreters: the files that were looked into.
    """

    def __init__(self, strings: Dictionary, interpreters: Interpreters) -> None:
        self._strings, self._interpreters = strings, interpreters
        self._programs: dict[int, list[_Since]] = {}
        #: name, device and inode of a file -> (whether it is or needs a CPython); None = it could not be looked into
        self._files: dict[tuple[int, int, int], bool | None] = {}
        #: whether a process has executed or mapped a CPython, or what is named like one
        self.met = False
        #: whether a process was started, or executed a further program
        self.others = False

    def begin(self, pid: int) -> None:
        """A process that runs no CPython, as somebody has seen: up to now, or to its next exec."""
        self._programs[pid] = [_Since(0, _Program(known=True))]

    def saw(self, batch: Batch) -> None:
        """Learns from what happened to processes and their mappings, in order of time."""
        if batch.schema is PROCESS:
            self._processes(batch)
        elif batch.schema is ADDRESS_SPACE:
            code = (batch["flags"] & MAP_EXECUTE) != 0
            for row in zip(*(batch[name][code].tolist() for name in _COLUMNS), strict=True):
                self._mapped(*row)

    def _processes(self, batch: Batch) -> None:
        rows = (batch["pid"] == batch["tid"]) & np.isin(batch["event"], (PROCESS_EXEC, PROCESS_FORK))
        columns = (batch[name][rows].tolist() for name in ("event", "pid", "ppid", "time_ns"))
        for event, pid, ppid, time_ns in zip(*columns, strict=True):
            if event == PROCESS_FORK:
                of_parent = self._programs.get(ppid)
                self._programs[pid] = [_Since(time_ns, of_parent[-1].program)] if of_parent else []
                self.others = True
                continue
            if len(self._programs) >= _MOST_PROCESSES:
                self._programs.clear()
            programs = self._programs.setdefault(pid, [])
            self.others |= not programs or programs[-1].time_ns > 0
            programs.append(_Since(time_ns, _Program()))
            del programs[:-_MOST_PROGRAMS]

    def _mapped(self, pid: int, time_ns: int, file: int, dev: int, ino: int) -> None:
        """A process has mapped code of a file."""
        program = next((p for since, p in reversed(self._programs.get(pid, ())) if since <= time_ns), None)
        first = program is not None and not program.started
        named = is_named(self._strings[file])
        if not ino or not (first or named):
            return
        python = self._look(pid, file, dev, ino)
        self.met |= named if python is None else python
        if program is None:
            return
        if first:
            program.started, program.known, program.python = True, python is not None, bool(python)
        if python is not False and program.mapped is None:
            program.mapped = time_ns

    def _look(self, pid: int, file: int, dev: int, ino: int) -> bool | None:
        """Whether the mapped file is a CPython or needs one; None where its name leads to it no more."""
        key = (file, dev, ino)
        if key not in self._files:
            if len(self._files) >= _MOST_FILES:
                self._files.clear()
            looked = self._interpreters.of_mapped(pid, self._strings[file], (dev, ino))
            self._files[key] = None if looked is None else looked.python is not None or looked.needs
        return self._files[key]

    def began(self, pid: int, time_ns: int) -> int:
        """When the process had executed what it was running at that time; 0 where that is not known."""
        return next((since for since, _ in reversed(self._programs.get(pid, ())) if since <= time_ns), 0)

    def how(self, pid: int, times: NDArray[Any]) -> NDArray[Any]:
        """Why faults of a process at those times have no Python frame, where that is proven; else HOW_UNKNOWN."""
        programs = self._programs.get(pid, [])
        how = np.full(len(times), HOW_UNKNOWN, "|u1")
        begins = np.array([since.time_ns for since in programs], "<u8")
        if len(begins) and len(times) and times.min() >= begins[-1]:  # as nearly always: no search
            which = np.full(len(times), len(begins))
        else:
            which = begins.searchsorted(times, side="right")
        for i, (_, program) in enumerate(programs, 1):
            if program.mapped is not None:
                how[(which == i) & (times < program.mapped)] = HOW_BEFORE_PYTHON
            elif program.known and not program.python:
                how[which == i] = HOW_NOT_PYTHON
        return how
