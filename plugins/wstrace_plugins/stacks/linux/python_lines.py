"""Python lines without a program in the kernel: from the words of the interpreter's loop in sampled stacks.

The innermost frame of CPython's loop has the address of its next instruction at a place that LearnedPlaces finds, and
CodeObjects knows the line of that address. A word is believed to be that address only where the instruction before it
is the one that the loop was executing, by the place in its code where it stood (Handlers). Of the function's callers
nothing is told: calls from Python to Python share one frame of the loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Dictionary
from wstrace.call_sites import CallSites
from wstrace.errors import TargetExited
from wstrace.schema import (
    FRAME_CUT,
    FRAME_PYTHON,
    HOW_LEARNED,
    HOW_LOOP_CUT,
    HOW_NO_INTERPRETER,
    HOW_NO_PYTHON,
    HOW_NO_ROOM,
    HOW_NOT_LEARNED,
    HOW_NOT_PROVEN,
    HOW_NOT_READABLE,
)
from wstrace_plugins.os.linux import procfs
from wstrace_plugins.stacks.linux.code_objects import MOST_NS, CodeObjects
from wstrace_plugins.stacks.linux.cpythons import CPython, CPythons
from wstrace_plugins.stacks.linux.handlers import Handlers
from wstrace_plugins.stacks.linux.images import CodeMapping
from wstrace_plugins.stacks.linux.known_code import KnownCode
from wstrace_plugins.stacks.linux.learned_places import UNKNOWN, LearnedPlaces
from wstrace_plugins.stacks.linux.loop_words import loop_words
from wstrace_plugins.stacks.reached import END
from wstrace_plugins.stacks.unwinder import LoopFrames, Samples, Unwound

MOST_PROCESSES, MOST_BUILDS, MOST_MET = 256, 64, 1 << 16
#: user addresses have 47 bits: a line and the begin of its code object as one number
_LINE_SHIFT = np.uint64(40)


class Found(NamedTuple):
    """For each sample, shape (n,): the call site of its Python frame, 0 = none, and how it was had or why not."""

    stack: NDArray[np.uint32]
    how: NDArray[np.uint8]

    @classmethod
    def none(cls, n: int) -> Found:
        """Of n samples whose lines nobody wants."""
        return cls(np.zeros(n, "<u4"), np.zeros(n, "u1"))


class PythonLines:
    """Finds the Python lines of samples, and learns from them.

    Args:
        code: what is known of the processes' code.
        tree: to which frames are added.
        strings: the session's names.
        lack: is told what the trace lacks, and why.
    """

    def __init__(self, code: KnownCode, tree: CallSites, strings: Dictionary, lack: Callable[[str], None]) -> None:
        self._lack = lack
        self._code, self._tree, self._strings = code, tree, strings
        self._pythons = CPythons(code.images)
        self._builds: dict[tuple[tuple[int, ...], str], LearnedPlaces] = {}
        #: process and mapping of the interpreter -> its code objects; None = its memory may not be read
        self._objects: OrderedDict[tuple[int, int], CodeObjects | None] = OrderedDict()
        self._processes: set[int] = set()
        #: CPU time for the reading of one process's code: none takes that of the others
        self._share_ns = MOST_NS
        self.learned = 0

    def lines(self, samples: Samples, stacks: Unwound, pid: NDArray[np.uint32], time: NDArray[np.uint64]) -> Found:
        """The lines of samples of these processes at these times, which were unwound with their loops."""
        loops, n = stacks.loops, len(pid)
        assert loops is not None
        if len(self._processes) > MOST_MET:
            self._processes.clear()
        self._processes.update(distinct(pid[loops.row]).tolist())
        with_python = np.isin(pid, list(self._processes))
        how = np.where(stacks.reason == END, np.where(with_python, HOW_NO_PYTHON, HOW_NO_INTERPRETER), HOW_LOOP_CUT)
        found = Found(np.zeros(n, "<u4"), how.astype("u1"))
        if len(loops.row):
            words = loop_words(samples, loops)
            ids = self._code.mappings_at(loops.row, loops.code_address)
            owner = pid[loops.row].astype("<u8") << np.uint64(32) | ids
            owners = distinct(owner).tolist()
            for one in owners:
                own = np.flatnonzero(owner == one)
                self._share_ns = MOST_NS // len(owners)
                self._of_process(one >> 32, one & 0xFFFF_FFFF, loops.take(own), words[own], time, found)
        return found

    def _of_process(
        self,
        pid: int,
        mapping: int,
        loops: LoopFrames,
        words: NDArray[np.uint64],
        time: NDArray[np.uint64],
        found: Found,
    ) -> None:
        """Fills in the rows of the loop frames of one process in one mapping of an interpreter."""
        found.how[loops.row] = HOW_NO_INTERPRETER
        described = self._code.mapping(mapping)
        python = self._pythons.of(described) if described is not None else None
        if described is None or python is None:
            return
        if python.handlers is None:
            found.how[loops.row] = HOW_NOT_LEARNED
            return
        bias = self._bias(described, int(loops.code_address[0]))
        objects = self._code_objects(pid, described, python, python.handlers, bias)
        if objects is None:
            found.how[loops.row] = HOW_NOT_READABLE
            return
        objects.begin()
        build = self._build(described, pid)
        address = loops.code_address - np.uint64(bias)
        instruction = python.handlers.at(address)
        if not objects.find(build.worth_reading(address, words), self._share_ns):
            self._lack("Python lines of some samples: their processes have more code than is read in time")
        code = objects.locate(words)
        line = objects.lines_of(words, code)
        proven = (
            (line > 0) & (objects.instructions_of(words, code) == instruction[:, None]) & (instruction[:, None] > 0)
        )
        shown = np.where(proven, objects.begins_of(code) ^ line.astype("<u8") << _LINE_SHIFT, np.uint64(0))
        build.learn(address, instruction, shown)
        place = build.places(address)
        row = np.arange(len(place))
        code, line, proven = code[row, place], line[row, place], proven[row, place]
        how = np.full(len(place), HOW_LEARNED, "u1")
        how[(objects.since_of(code) > time[loops.row]) | ~objects.read_of(code)] = HOW_NOT_PROVEN
        how[~proven] = HOW_NOT_LEARNED
        how[(code < 0) | (line == 0)] = HOW_NOT_READABLE
        how[place == UNKNOWN] = HOW_NOT_LEARNED
        good = how == HOW_LEARNED
        function, file = objects.names[code[good]].T
        leaf = self._tree.add(0, kind=FRAME_PYTHON, function=function, file=file, line=line[good], flags=FRAME_CUT)
        how[good] = np.where(leaf == self._tree.cut, HOW_NO_ROOM, HOW_LEARNED)
        found.stack[loops.row[good]] = leaf
        found.how[loops.row] = how
        self.learned += int(good.sum())

    def _build(self, mapping: CodeMapping, pid: int) -> LearnedPlaces:
        """The places of an interpreter, learned from processes of one user: these may write each other's memory anyway.

        Of another user's process anyone may make the stack look like what is learned.
        """
        try:
            user = procfs.status(pid)["Uid"]  # not the owner of its files: that is root where it cannot be dumped
        except (TargetExited, KeyError):
            user = f"of {pid}"
        if len(self._builds) >= MOST_BUILDS:
            self._builds.clear()
        return self._builds.setdefault((mapping.which_file, user), LearnedPlaces())

    def _bias(self, mapping: CodeMapping, address: int) -> int:
        """What a mapping adds to link-time addresses, one of which is that of an instruction there."""
        image = self._code.images.of(mapping)
        linked = image.unwind.address_of(address - mapping.start + mapping.offset) if image is not None else None
        return address - (linked or 0)

    def _code_objects(
        self, pid: int, mapping: CodeMapping, python: CPython, handlers: Handlers, bias: int
    ) -> CodeObjects | None:
        """The code objects of a process with that CPython in that mapping; None = not readable."""
        key = pid, mapping.id
        if key not in self._objects:
            made: CodeObjects | None = None
            try:
                made = CodeObjects(pid, python.layout, python.types_in(bias), handlers.instructions, self._strings)
            except PermissionError as error:
                self._lack(f"Python lines of some processes: their memory may not be read ({error.strerror}): "
                           "wstrace doctor says what permits it")  # fmt: skip
            except OSError:  # it has ended
                made = None
            self._objects[key] = made
            if len(self._objects) > MOST_PROCESSES:
                _close(self._objects.popitem(last=False)[1])
        self._objects.move_to_end(key)
        return self._objects[key]

    def close(self) -> None:
        """Closes the processes' memory."""
        while self._objects:
            _close(self._objects.popitem()[1])

    def statistics(self) -> dict[str, int]:
        """Samples whose line is known."""
        return {"python_lines": self.learned}


def _close(objects: CodeObjects | None) -> None:
    if objects is not None:
        objects.close()
