"""RemoteInput: an object that is read by ranged requests, merged with their neighbours."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import TraceFileError
from wstrace_exporters.msgpack.storage.store import StoreError, store_of
from wstrace_exporters.msgpack.storage.urls import Place

#: Ranges nearer than this are read as one, up to BLOCK_BYTES: at 30 ms a request, 1 MiB takes about as long.
GAP_BYTES, BLOCK_BYTES = 1 << 20, 8 << 20
#: The least that is read: the end of a file has its END and, as a rule, its whole INDEX.
SMALL_BYTES = 256 << 10
#: An INDEX that is longer is read up to the end of the file at once, up to this.
_TAIL_BYTES = 4 << 20
#: Blocks that are read at once, plans that an input remembers, and the bytes that all inputs hold together.
_AT_ONCE, _PLANS, HELD_BYTES = 3, 4, 64 << 20


class RemoteInput:
    """An object in a store.

    Args:
        place: the object of a listing; of a URL, the server says its size.

    Attributes:
        path: its URL without credentials. size: bytes.

    Raises:
        TraceFileError: there is no such object.
    """

    #: The blocks of all inputs: the input, where in it, the bytes. The oldest are forgotten past HELD_BYTES.
    _held: ClassVar[deque[tuple[RemoteInput, int, bytes]]] = deque()
    _lock = threading.Lock()

    def __init__(self, place: Place) -> None:
        url = place if isinstance(place, str) else place.url
        self._store = store_of(url)
        self._object = stored = self._store.stat(url) if isinstance(place, str) else place
        self.path, self.size = stored.shown, stored.size
        self._plans: deque[list[tuple[int, int]]] = deque(maxlen=_PLANS)

    def read(self, at: int, n: int) -> memoryview:
        """n bytes at an offset, fewer at the end of the object."""
        end = min(at + n, self.size)
        if at >= end:
            return memoryview(b"")
        with self._lock:
            for one, begin, data in reversed(self._held):
                if one is self and begin <= at and end <= begin + len(data):
                    return memoryview(data)[at - begin : end - begin]
        blocks = self._blocks(at, end)
        with ThreadPoolExecutor(len(blocks), "wstrace-read") as pool:
            read = list(pool.map(lambda block: self._store.fetch(self._object, *block), blocks))
        with self._lock:
            self._held.extend(
                (self, start, data) for (start, _), data in reversed(list(zip(blocks, read, strict=True)))
            )
            while len(self._held) > _AT_ONCE and sum(len(data) for _, _, data in self._held) > HELD_BYTES:
                self._held.popleft()
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

    def ahead(self, offsets: NDArray[Any], lengths: NDArray[Any]) -> None:
        """From now on these ranges, ascending, are read in blocks, some of them before they are needed."""
        if blocks := blocks_of(offsets, lengths):
            self._plans.append(blocks)

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
        with self._lock:
            for block in [block for block in self._held if block[0] is self]:
                self._held.remove(block)


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
