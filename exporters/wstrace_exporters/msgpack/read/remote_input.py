"""RemoteInput: an object that is read by ranged requests, merged with their neighbours and begun ahead."""

from __future__ import annotations

import threading
from bisect import bisect_right
from concurrent.futures import CancelledError, Future
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import TraceFileError
from wstrace_exporters.msgpack.read.input import Input
from wstrace_exporters.msgpack.storage.errors import StoreError, refusal
from wstrace_exporters.msgpack.storage.store import REQUEST_SECONDS, WHOLE_BYTES, Store, store_of
from wstrace_exporters.msgpack.storage.urls import Place, StoredObject, scheme_of

#: Ranges nearer than this are read as one, up to BLOCK_BYTES: at 30 ms a request, 1 MiB takes about as long.
GAP_BYTES, BLOCK_BYTES = 1 << 20, 8 << 20
#: The least that is read: the end of a file has its END and, as a rule, its whole INDEX.
SMALL_BYTES = 256 << 10
#: An INDEX that is longer is read up to the end of the file at once, up to this.
_TAIL_BYTES = 4 << 20
#: Blocks that are requested before the one that is needed is there; and the bytes that all inputs hold together.
AHEAD_BLOCKS, HELD_BYTES = 3, 64 << 20
#: Seconds for a request with its repetitions.
_PATIENCE = 4 * REQUEST_SECONDS


class _Block(NamedTuple):
    """A part of an object that was asked for."""

    of: RemoteInput
    start: int
    end: int
    data: Future[bytes]


class _Held:
    """The blocks of all inputs, of which the oldest are forgotten past HELD_BYTES."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._blocks: list[_Block] = []

    def find(self, of: RemoteInput, start: int, end: int) -> _Block | None:
        """The newest block that has all bytes start:end of an input."""
        return next((b for b in reversed(self._blocks) if b.of is of and b.start <= start and end <= b.end), None)

    def add(self, block: _Block) -> None:
        """Adds a block, and forgets the oldest ones."""
        self._blocks.append(block)
        held = 0
        for position in range(len(self._blocks) - 1, -1, -1):
            held += self._blocks[position].end - self._blocks[position].start
            if held > HELD_BYTES and position < len(self._blocks) - 1 - AHEAD_BLOCKS:
                del self._blocks[: position + 1]
                return

    def forget(self, *, of: RemoteInput | None = None, block: _Block | None = None) -> None:
        """Forgets a block, or all blocks of an input, whose requests end."""
        gone = [b for b in self._blocks if b is block or b.of is of]
        self._blocks = [b for b in self._blocks if b not in gone]
        for each in gone:
            each.data.cancel()


_HELD = _Held()


class RemoteInput(Input):
    """An object in a store. Unlike of a local file, its bytes stay valid, and several threads may read them.

    Raises:
        TraceFileError: there is no such object, or it can be read neither in parts nor at once.
    """

    def __init__(self, store: Store, stored: StoredObject) -> None:
        self._store, self._object = store, stored
        self.path, self.size = stored.shown, stored.size
        if not stored.ranged and self.size > WHOLE_BYTES:
            raise TraceFileError(
                f"cannot read {self.path}: the server sends no parts of it (no HTTP ranges), and whole it is "
                f"{self.size >> 20:,} MiB long",
                "download it first",
            )

    @classmethod
    def opened(cls, place: Place) -> RemoteInput:
        """The input of an object; of a URL, the server is asked for its size."""
        if isinstance(place, StoredObject):
            return cls(store_of(scheme_of(place.url)), place)
        store = store_of(scheme_of(place))
        return cls(store, store.stat(place))

    def read(self, at: int, n: int) -> memoryview:
        """n bytes at an offset, fewer at the end of the object."""
        end = min(at + n, self.size)
        if at >= end:
            return memoryview(b"")
        start, stop = at, end
        if stop - start < SMALL_BYTES:
            rest = self.size - start
            stop = self.size if rest <= _TAIL_BYTES else start + SMALL_BYTES
            start = max(0, min(start, self.size - SMALL_BYTES))
        return self._taken(self._block(start, stop, (at, end)), at, end)

    def _block(self, start: int, end: int, needed: tuple[int, int] | None = None) -> _Block:
        """The block that has the bytes `needed`, or start:end, which are asked for if no block has them."""
        if not self._object.ranged:
            start, end = 0, self.size
        with _HELD.lock:
            block = _HELD.find(self, *(needed or (start, end)))
            if block is None:
                block = _Block(self, start, end, self._store.fetch(self._object, start, end))
                _HELD.add(block)
            return block

    def _taken(self, block: _Block, at: int, end: int) -> memoryview:
        try:
            data = block.data.result(_PATIENCE)
        except (Exception, CancelledError) as error:
            with _HELD.lock:
                _HELD.forget(block=block)
            self.check()
            raise refusal(error, self._object.url) from None
        return memoryview(data)[at - block.start : end - block.start]

    def ahead(self, offsets: NDArray[Any], lengths: NDArray[Any]) -> Input:
        """An input that asks for the ranges in blocks, the first ones now and others before they are needed."""
        blocks = blocks_of(offsets, lengths)
        return _Ahead(self, blocks) if blocks else self

    def for_thread(self) -> Input:
        """This input."""
        return self

    def check(self) -> None:
        """Raises TraceFileError when the object was replaced since it was opened, or is gone."""
        try:
            now = self._store.stat(self._object.url)
        except StoreError as error:
            if error.kind != "missing":
                return  # the server may tell nothing of it; what was read says enough
            raise
        if (now.size, now.version) != (self.size, self._object.version or now.version):
            raise TraceFileError(f"{self.path} was replaced while it was read", "open it again")

    def close(self) -> None:
        """Forgets its blocks."""
        with _HELD.lock:
            _HELD.forget(of=self)


class _Ahead(Input):
    """Reads a RemoteInput in planned blocks."""

    def __init__(self, source: RemoteInput, blocks: list[tuple[int, int]]) -> None:
        self._source, self._blocks = source, blocks
        self._starts = [start for start, _ in blocks]
        self.path, self.size = source.path, source.size
        self._begin(0)

    def _begin(self, position: int) -> _Block:
        """Asks for some blocks; returns the first of them."""
        first, *_ = [self._source._block(*block) for block in self._blocks[position : position + AHEAD_BLOCKS]]
        return first

    def read(self, at: int, n: int) -> memoryview:
        end = min(at + n, self.size)
        position = bisect_right(self._starts, at) - 1
        if at >= end:
            return memoryview(b"")
        if position < 0 or at >= self._blocks[position][1]:
            return self._source.read(at, n)
        if end > self._blocks[position][1]:  # a frame over two blocks: of a scan
            first = self._blocks[position][1]
            return memoryview(bytes(self.read(at, first - at)) + bytes(self.read(first, end - first)))
        return self._source._taken(self._begin(position), at, end)

    def ahead(self, offsets: NDArray[Any], lengths: NDArray[Any]) -> Input:
        return self._source.ahead(offsets, lengths)

    def for_thread(self) -> Input:
        return self

    def check(self) -> None:
        self._source.check()

    def close(self) -> None:
        """Does nothing: the blocks are those of the input."""


def blocks_of(offsets: NDArray[Any], lengths: NDArray[Any]) -> list[tuple[int, int]]:
    """The blocks (start, end) in which ranges are read: neighbours merged, and none longer than BLOCK_BYTES.

    Args:
        offsets: of the ranges, ascending, shape (n,), in bytes.
        lengths: of the ranges, shape (n,), in bytes.
    """
    found: list[tuple[int, int]] = []
    for start, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        end = start + length
        if found and start - found[-1][1] <= GAP_BYTES and end - found[-1][0] <= BLOCK_BYTES:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found += [(at, min(at + BLOCK_BYTES, end)) for at in np.arange(start, end, BLOCK_BYTES).tolist()]
    return found
