"""Reported code objects and stacks as call sites: a stack's hash -> the id of its innermost frame."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.batch import Batch, Dictionary
from wstrace.call_sites import CallSites
from wstrace.schema import FRAME_CUT, FRAME_PYTHON, FRAME_UNCHECKED, HOW_EXACT, HOW_NO_ROOM, HOW_NOT_READABLE
from wstrace_plugins.os.linux.cpython.objects import LineTable, characters
from wstrace_plugins.page_faults.linux.python_stacks.protocol import (
    CODE_HEAD,
    DEPTH,
    FILE_ROOM,
    FRAME,
    HEAD,
    LINES_ROOM,
    NAME_ROOM,
    OK,
    RECORD_CODE,
    RECORD_STACK,
    STATUS_BITS,
    UNCHECKED,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODE = struct.Struct("<IIQIIIIII")
_STACK = struct.Struct("<IIQQ")
assert (_CODE.size, _STACK.size) == (CODE_HEAD, HEAD)
_FRAME = np.dtype([("code", "<u8"), ("offset", "<u8"), ("address", "<u8")])
assert _FRAME.itemsize == FRAME
#: bytes that code objects and stacks take at most; what one of each takes without its line table (measured); and the
#: frames that are remembered besides
MOST_BYTES, _CODE_BYTES, _STACK_BYTES, _MOST_FRAMES = 48 << 20, 600, 200, 1 << 16
_CODE_UNIT = 2


class _Code(NamedTuple):
    """A code object: codes of its names, its lines, and where its instructions begin."""

    function: int
    file: int
    first: int
    lines: LineTable
    begin: int
    nbytes: int


class _Frame(NamedTuple):
    function: int
    file: int
    line: int
    flags: int


class _Recent:
    """What was reported, by its key: what was used since it was full the last time but one.

    nbytes: of a value.
    """

    def __init__(self, nbytes: Callable[[Any], int]) -> None:
        self._nbytes, self._bytes = nbytes, 0
        self._new: dict[int, Any] = {}
        self._old: dict[int, Any] = {}

    def get(self, key: int) -> Any:
        """The value; None where none was reported."""
        if key in self._old:
            self.add(key, self._old[key])
        return self._new.get(key)

    def add(self, key: int, value: Any) -> None:
        """Adds a value, if it is new."""
        self._old.pop(key, None)
        if key not in self._new:
            self._new[key] = value
            self._bytes += self._nbytes(value)

    def forgotten(self) -> Iterable[int]:
        """The keys of what is forgotten now, if it is full: what is used again must be reported again."""
        if self._bytes < MOST_BYTES // 4:
            return ()
        forgotten, self._old, self._new, self._bytes = self._old, self._new, {}, 0
        return forgotten


class Decoder:
    """Takes the records of the ring buffer, in their order, and keeps the leaf of each stack.

    sites: the tree that the frames go into. strings: the dictionary of their names.
    """

    def __init__(self, sites: CallSites, strings: Dictionary) -> None:
        self._sites, self._strings = sites, strings
        self._codes = _Recent(lambda code: int(code.nbytes))
        #: hash -> (id of the innermost frame, how it was had)
        self._stacks = _Recent(lambda _: _STACK_BYTES)
        #: (code, offset) -> its frame
        self._frames: dict[tuple[int, int], _Frame] = {}

    def take(self, records: Iterable[memoryview]) -> Batch | None:
        """Reads new records; returns the call sites that are new."""
        stacks: dict[int, NDArray[Any]] = {}
        for record in records:
            kind = record[0]
            if kind == RECORD_CODE:
                self._code(bytes(record))
            elif kind == RECORD_STACK:
                _, _, key, n = _STACK.unpack_from(record)
                stacks[key] = np.frombuffer(bytes(record[HEAD : HEAD + FRAME * min(n, DEPTH)]), _FRAME)
        if not stacks:
            return None
        self._add(stacks)
        return self._sites.new_rows()

    def leaf(self, key: int) -> tuple[int, int] | None:
        """(the id of the innermost frame, how it was had) of the stack with that hash; None if it was not reported."""
        leaf: tuple[int, int] | None = self._stacks.get(key)
        return leaf

    def forgotten(self) -> tuple[Iterable[int], Iterable[int]]:
        """The code objects and the stacks that are forgotten now, and must be reported again when they are used."""
        return self._codes.forgotten(), self._stacks.forgotten()

    def _code(self, record: bytes) -> None:
        kind, _, key, first, table, state, length, file_state, file_length = _CODE.unpack_from(record)
        lines = record[CODE_HEAD + NAME_ROOM + FILE_ROOM :][: min(table, LINES_ROOM)]
        code = _Code(
            self._strings.code(characters(record[CODE_HEAD : CODE_HEAD + NAME_ROOM], state, length)),
            self._strings.code(characters(record[CODE_HEAD + NAME_ROOM :][:FILE_ROOM], file_state, file_length)),
            first,
            LineTable(lines, first),
            kind >> 8,
            _CODE_BYTES + len(lines),
        )
        self._codes.add(key, code)

    def _add(self, stacks: dict[int, NDArray[Any]]) -> None:
        """Adds stacks to the tree, one level of all of them after the other, from the outermost frame inwards."""
        whole = [[self._frame(*frame) for frame in stack[["code", "offset"]].tolist()] for stack in stacks.values()]
        chains = [[frame or _Frame(0, 0, 0, FRAME_UNCHECKED) for frame in reversed(frames)] for frames in whole]
        for key, chain in zip(stacks, chains, strict=True):
            if chain and key & (1 << STATUS_BITS) - 1 != OK:
                chain[0] = chain[0]._replace(flags=chain[0].flags | FRAME_CUT)
        leaves = np.zeros(len(chains), "<u4")
        for level in range(max(map(len, chains))):
            rows = [i for i, chain in enumerate(chains) if len(chain) > level]
            function, file, line, flags = np.array([chains[i][level] for i in rows], "<i8").T
            leaves[rows] = self._sites.add(
                leaves[rows], kind=FRAME_PYTHON, function=function, file=file, line=line, flags=flags
            )
        for key, leaf, frames in zip(stacks, leaves.tolist(), whole, strict=True):
            if not frames or frames[0] is None:
                self._stacks.add(key, (0, HOW_NOT_READABLE))
            else:
                self._stacks.add(key, (leaf, HOW_NO_ROOM if leaf == self._sites.cut else HOW_EXACT))

    def _frame(self, key: int, offset: int) -> _Frame | None:
        """The frame at an offset of a code object, with its flags; None where that was not reported."""
        known = self._frames.get((key, offset))
        if known is not None:
            return known
        code: _Code | None = self._codes.get(key)
        if code is None:
            return None
        line = code.lines.line((offset % UNCHECKED - code.begin) // _CODE_UNIT)
        frame = _Frame(code.function, code.file, line or 0, FRAME_UNCHECKED if offset & UNCHECKED else 0)
        if len(self._frames) >= _MOST_FRAMES:
            self._frames.clear()
        self._frames[key, offset] = frame
        return frame
