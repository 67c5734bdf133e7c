"""What is known of code addresses: the frame that each one is, and the rule that leads to its caller.

An address is known by its mapping and its offset within it, so processes that inherited a mapping share what is known,
and memory that is mapped anew is met anew. What numpy looks up for thousands of addresses is found out once for each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wstrace.analysis.tally import distinct
from wstrace.batch import Batch, Dictionary
from wstrace.schema import FRAME_INTERPRETER, FRAME_JIT, FRAME_NATIVE, FRAME_PYTHON, MAP_EXECUTE
from wstrace.text import base_name
from wstrace_plugins.stacks import rules
from wstrace_plugins.stacks.eh_frame import UnwindFile
from wstrace_plugins.stacks.linux.images import CodeMapping, Images, Loop
from wstrace_plugins.stacks.linux.perf_maps import MOST_BYTES, PerfMap
from wstrace_plugins.stacks.rules import Rule

MOST_MAPPINGS = 1 << 18
MOST_ADDRESSES = 1 << 20
MOST_PERF_MAPS = 1024
#: CPU seconds in which the addresses of a batch of samples are found out. A program decides how many it has, and how
#: long each takes: at those that are left its stacks are cut.
_MOST_SECONDS = 1.0
_OFFSET_BITS = 40
#: the frame number of an address that is not in executable memory
OUTSIDE = 1
_PYTHON_PREFIX = "py::"
#: part of the names of the files that have CPython's loop
_INTERPRETER = "python"

#: (rows of the batch, addresses u64) -> the ids of their mappings, u32, 0 = unknown
MappingsAt = Callable[[NDArray[np.int64], NDArray[np.uint64]], NDArray[np.uint32]]


class Frame(NamedTuple):
    """A frame as a call site has it."""

    kind: int
    mapping: int
    offset: int
    function: int
    file: int
    flags: int = 0


class KnownCode:
    """The rules and frames of all code addresses that have occurred."""

    def __init__(self, strings: Dictionary) -> None:
        self._strings = strings
        self.images = Images(strings)
        self._mappings: list[CodeMapping] = []
        self._ids: NDArray[np.uint32] = np.zeros(0, "<u4")
        self._starts: NDArray[np.uint64] = np.zeros(0, "<u8")
        self._fresh = False
        self._perf_maps: dict[int, PerfMap] = {}
        #: pid -> the time of its first executable mapping: a listing may repeat it later, when its map is whole already
        self._began: dict[int, int] = {}
        self._files: dict[tuple[int, int, int, int], int] = {}
        self._loops: dict[tuple[int, int, int, int], Loop] = {}
        self._rule_rows: dict[Rule, int] = {}
        self._until = float("inf")  # on the clock of this thread's CPU time
        self.mappings_at: MappingsAt = lambda rows, addresses: np.zeros(len(rows), "<u4")
        self._forget()

    def _forget(self) -> None:
        """Begins with no address known."""
        self._keys: NDArray[np.uint64] = np.zeros(0, "<u8")
        self._numbers: NDArray[np.int64] = np.zeros(0, np.int64)
        self._rule_rows = {}
        #: file and offset -> what is known of that place in whatever process
        self._in_files: dict[tuple[tuple[int, int, int, int], int], tuple[Rule, Frame]] = {}
        self._rules: list[Rule] = []
        self.rules: NDArray[np.int64] = np.array([rules.NO_RULE], np.int64).T.copy()
        self._frames: list[Frame] = [Frame(0, 0, 0, 0, 0), Frame(FRAME_NATIVE, 0, 0, 0, 0)]
        self._rows: list[int] = [-1, -1]
        #: by frame number: the columns of Frame, and the row of its rule, -1 = the address is not in executable memory
        self.frames: NDArray[np.uint64] = np.zeros((0, len(Frame._fields)), "<u8")
        self.rule_of: NDArray[np.int64] = np.zeros(0, np.int64)
        self._arrays()

    def _arrays(self) -> None:
        """Appends what was found out since the last call to the arrays by frame number."""
        old = len(self.rule_of)
        table = np.array(self._frames[old:], "<u8").reshape(-1, len(Frame._fields))
        self.frames = np.concatenate((self.frames, table))
        self.rule_of = np.concatenate((self.rule_of, np.array(self._rows[old:], np.int64)))
        if self._rules:
            self.rules = np.array(self._rules, np.int64).T.copy()

    def learn(self, batch: Batch) -> None:
        """Takes the executable ones of a batch of `mapping`."""
        names = [name for name in CodeMapping._fields if name in batch]
        rows = np.flatnonzero(batch["flags"] & MAP_EXECUTE)
        columns = {name: batch[name][rows].tolist() for name in names}
        absent = [0] * len(rows)
        for values in zip(*(columns.get(name, absent) for name in CodeMapping._fields), strict=True):
            if len(self._mappings) < MOST_MAPPINGS:
                mapping = CodeMapping(*values)
                self._mappings.append(mapping)
                self._began[mapping.pid] = min(mapping.time_ns, self._began.get(mapping.pid, mapping.time_ns))
                self._fresh = True

    def _index(self) -> None:
        if not self._fresh:
            return
        self._fresh = False
        if any(a.id > b.id for a, b in zip(self._mappings, self._mappings[1:], strict=False)):
            self._mappings.sort()
            self._forget()
        self._ids = np.array([one.id for one in self._mappings], "<u4")
        self._starts = np.array([one.start for one in self._mappings], "<u8")

    def begin(self, pid: ArrayLike, mappings_at: MappingsAt) -> None:
        """Begins a batch of samples: what their JIT compilers have named since is read.

        pid: of each sample, shape (n,), or of all, shape (1,). mappings_at: finds the mappings of addresses.
        """
        self.mappings_at, self._until = mappings_at, time.thread_time() + _MOST_SECONDS
        if len(self._frames) > MOST_ADDRESSES:
            self._forget()
        self._index()
        pids = distinct(np.asarray(pid)).tolist()
        grown = {pid for pid in pids if pid in self._perf_maps and self._grown(self._perf_maps[pid])}
        if grown:
            stale = np.array([one.pid in grown and not self._strings[one.file].startswith("/")
                              for one in self._mappings], bool)  # fmt: skip
            kept = ~stale[(self._keys >> np.uint64(_OFFSET_BITS)).astype(np.int64)]
            self._keys, self._numbers = self._keys[kept], self._numbers[kept]

    def numbers_of(self, rows: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
        """The frame numbers of instructions, each in the process and at the time of its sample.

        rows: the samples. after: the address behind each instruction.
        """
        addresses = (after - 1).view("<u8")
        return self._searched(self.mappings_at(rows, addresses), addresses)

    def _searched(self, ids: NDArray[np.uint32], addresses: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The frame numbers of addresses in mappings."""
        if not len(self._ids):
            return np.full(len(ids), OUTSIDE, np.int64)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        offset = addresses - self._starts.take(at)
        code = (self._ids.take(at) == ids) & (ids > 0) & (offset >> np.uint64(_OFFSET_BITS) == 0)
        keys = at.astype("<u8") << np.uint64(_OFFSET_BITS) | offset
        numbers = self._known(keys)
        missing = code & (numbers == OUTSIDE)
        if missing.any() and time.thread_time() < self._until:
            self._find_out(distinct(keys[missing]))
            numbers = self._known(keys)
        return np.where(code, numbers, OUTSIDE)

    def _known(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The frame numbers of addresses; OUTSIDE of those that are not known."""
        if not len(self._keys):
            return np.full(len(keys), OUTSIDE, np.int64)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[place] == keys, self._numbers[place], OUTSIDE)

    def _find_out(self, keys: NDArray[np.uint64]) -> None:
        """Finds the rules and frames of addresses that occur for the first time, while there is time."""
        mask, before = (1 << _OFFSET_BITS) - 1, len(self._frames)
        for key in keys.tolist():
            if time.thread_time() > self._until:
                break
            mapping = self._mappings[key >> _OFFSET_BITS]
            rule, frame = self._described(mapping, key & mask)
            self._frames.append(frame)
            row = self._rule_rows.setdefault(rule, len(self._rules))
            if row == len(self._rules):
                self._rules.append(rule)
            self._rows.append(row)
        self._arrays()
        numbers = np.arange(before, len(self._frames))
        keys = keys[: len(numbers)]
        merged = np.concatenate((self._keys, keys))
        order = np.argsort(merged, kind="stable")
        self._keys, self._numbers = merged[order], np.concatenate((self._numbers, numbers))[order]

    def _described(self, mapping: CodeMapping, inside: int) -> tuple[Rule, Frame]:
        """The rule and the frame of a place in a mapping."""
        in_file = mapping.is_vdso or self._strings[mapping.file].startswith("/")
        offset = inside + (mapping.offset if in_file else mapping.start)
        native = Frame(FRAME_NATIVE, self._first_of_file(mapping) if in_file else mapping.id, offset, 0, 0)
        place = mapping.which_file, offset
        if in_file and place in self._in_files:
            return self._in_files[place]
        image = self.images.of(mapping)
        if image is not None:
            address = image.elf.address_of(offset)
            rule = image.rule(address) if address is not None else None
            if address is not None and rule is not None:
                self._in_files[place] = found = rule, self._with_function(native, mapping, image, address)
                return found
        name = self._jit_name(mapping, mapping.start + inside)
        if name is None:
            return rules.UNDESCRIBED_FRAME_POINTER if in_file else rules.FRAME_POINTER, native
        if name.startswith(_PYTHON_PREFIX):
            function, _, file = name.removeprefix(_PYTHON_PREFIX).partition(":")
            code = self._strings.code
            return rules.PYTHON_TRAMPOLINE, Frame(FRAME_PYTHON, 0, 0, code(function), code(file))
        return rules.FRAME_POINTER, Frame(FRAME_JIT, 0, 0, self._strings.code(name), 0)

    def _with_function(self, native: Frame, mapping: CodeMapping, image: UnwindFile, address: int) -> Frame:
        """The frame, which may be the interpreter's loop."""
        name = self._strings[mapping.file]
        if _INTERPRETER not in name.rpartition("/")[2]:
            return native
        key = mapping.which_file
        if key not in self._loops:
            self._loops[key] = Loop.of(image)
        return native._replace(flags=FRAME_INTERPRETER) if self._loops[key].has(image, address) else native

    def _first_of_file(self, mapping: CodeMapping) -> int:
        """The first mapping of the same file: ten thousand processes that execute it share their call sites."""
        return self._files.setdefault(mapping.which_file, mapping.id)

    def _jit_name(self, mapping: CodeMapping, address: int) -> str | None:
        """The name that a perf map has for an address; None where it has none."""
        known = self._perf_maps.get(mapping.pid)
        if known is None:
            if len(self._perf_maps) >= MOST_PERF_MAPS:
                self._perf_maps.pop(next(iter(self._perf_maps))).close()
            known = self._perf_maps[mapping.pid] = PerfMap(mapping.pid, self._began[mapping.pid])
            self._grown(known)
        return known.name(address)

    def _grown(self, perf_map: PerfMap) -> bool:
        """Reads what a map has got since, as far as there is room for those of all processes; whether it has grown."""
        return perf_map.grow(MOST_BYTES - sum(one.nbytes for one in self._perf_maps.values()))

    def grow(self) -> set[str]:
        """Reads what maps have got since; returns the files with code of processes that have none, or an empty one."""
        self._until = time.thread_time() + _MOST_SECONDS
        without = {pid for pid, one in self._perf_maps.items() if not (self._grown(one) or len(one))}
        return {base_name(self._strings[one.file]) for one in self._mappings if one.pid in without}

    def name_by_now(self, mapping: int, address: int) -> int:
        """The code of the name that a map has for code without a file, 0 = none; it may be as new as its end."""
        one = self._mappings[int(np.searchsorted(self._ids, mapping))]
        late = time.thread_time() > self._until
        name = None if late or self._strings[one.file].startswith("/") else self._jit_name(one, address)
        return self._strings.code(name) if name else 0

    def close(self) -> None:
        """Closes all files."""
        self.images.close()
        for perf_map in self._perf_maps.values():
            perf_map.close()
        self._perf_maps.clear()
