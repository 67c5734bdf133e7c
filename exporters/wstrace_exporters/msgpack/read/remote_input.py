"""RemoteInput: an object that is read by ranged requests, merged with their neighbours."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import TraceFileError
from wstrace_exporters.msgpack.read.input import Input
from wstrace_exporters.msgpack.storage.store import Store, StoreError, store_of
from wstrace_exporters.msgpack.storage.urls import Place, StoredObject

#: Ranges nearer than this are read as one, up to BLOCK_BYTES: at 30 ms a request, 1 MiB takes about as long.
GAP_BYTES, BLOCK_BYTES = 1 << 20, 8 << 20
#: The least that is read: the end of a file has its END and, as a rule, its whole INDEX.
SMALL_BYTES = 256 << 10
#: An INDEX that is longer is read up to the end of the file at once, up to this.
_TAIL_BYTES = 4 << 20
#: Blocks that are read at once, plans that an input remembers, and the bytes that all inputs hold together.
_AT_ONCE, _PLANS, HELD_BYTES = 3, 4, 64 << 20


class _Held:
    """The blocks of all inputs, of which the oldest are forgotten past HELD_BYTES."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._blocks: deque[tuple[RemoteInput, int, bytes]] = deque()  # an object, where in it, the bytes

    def find(self, of: RemoteInput, start: int, end: int) -> memoryview | None:
        """The bytes start:end of an input, if a block has them all."""
        with self.lock:
            for one, begin, data in reversed(self._blocks):
                if one is of and begin <= start and end <= begin + len(data):
                    return memoryview(data)[start - begin : end - begin]
        return None

    def add(self, of: RemoteInput, start: int, data: bytes) -> None:
        """Adds a block, and forgets the oldest ones."""
        with self.lock:
            self._blocks.append((of, start, data))
            while len(self._blocks) > _AT_ONCE and sum(len(one[2]) for one in self._blocks) > HELD_BYTES:
                self._blocks.popleft()

    def forget(self, of: RemoteInput) -> None:
        """Forgets all blocks of an input."""
        with self.lock:
            self._blocks = deque(block for block in self._blocks if block[0] is not of)


_HELD = _Held()


class RemoteInput(Input):
    """An object in a store. Unlike of a local file, its bytes stay valid, and several threads may read them.

    Raises:
        TraceFileError: there is no such object.
    """

    def __init__(self, store: Store, stored: StoredObject) -> None:
        self._store, self._object = store, stored
        self.path, self.size = stored.shown, stored.size
        self._plans: deque[list[tuple[int, int]]] = deque(maxlen=_PLANS)
        self._reading = threading.Lock()

    @classmethod
    def opened(cls, place: Place) -> RemoteInput:
        """The input of an object; of a URL, the server says its size."""
        url = place.url if isinstance(place, StoredObject) else place
        store = store_of(url)
        return cls(store, place if isinstance(place, StoredObject) else store.stat(url))

    def read(self, at: int, n: int) -> memoryview:
        """n bytes at an offset, fewer at the end of the object."""
        end = min(at + n, self.size)
        if at >= end:
            return memoryview(b"")
        with self._reading:
            found = _HELD.find(self, at, end)
            if found is not None:
                return found
            blocks = self._blocks(at, end)
            with ThreadPoolExecutor(len(blocks), "wstrace-read") as pool:
                read = list(pool.map(lambda block: self._store.fetch(self._object, *block), blocks))
            for (start, _), data in reversed(list(zip(blocks, read, strict=True))):
                _HELD.add(self, start, data)
            return memoryview(read[0])[at - blocks[0][0] : end - blocks[0][0]]

    def _blocks(self, at: int, end: int) -> list[tuple[int, int]]:
        """What to read for the bytes at:end, which the first block has: planned blocks, or at least SMALL_BYTES."""
        for plan in reversed(self._plans):
            position = bisect_right(plan, (at, self.size)) - 1
            if position >= 0 and end <= plan[position][1]:
                return plan[position : position + _AT_ONCE]
        if end - at >= SMALL_BYTES:
            return [(at, end)]
        stop = self.size if self.size - at <= _TAIL_BYTES else at + SMALL_BYTES
        return [(max(0, min(at, self.size - SMALL_BYTES)), stop)]

    def ahead(self, offsets: NDArray[Any], lengths: NDArray[Any]) -> Input:
        """This input, which reads these ranges in blocks, some of them before they are needed."""
        if blocks := blocks_of(offsets, lengths):
            self._plans.append(blocks)
        return self

    def for_thread(self) -> Input:
        """This input."""
        return self

    def check(self) -> None:
        """Raises TraceFileError when the object was replaced since it was opened, or is gone."""
        try:
            now = self._store.stat(self._object.url)
        except StoreError as error:
            if error.kind != "missing":
                return  # the server may not say; what was read says enough
            raise
        if (now.size, now.etag) != (self.size, self._object.etag or now.etag):
            raise TraceFileError(f"{self.path} was replaced while it was read", "open it again")

    def close(self) -> None:
        """Forgets its blocks."""
        _HELD.forget(self)


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
