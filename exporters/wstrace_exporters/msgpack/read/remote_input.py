"""RemoteInput: an object that is read by ranged requests, in blocks."""

from __future__ import annotations

import threading
from typing import ClassVar

from wstrace.errors import TraceFileError
from wstrace_exporters.msgpack.storage.store import StoreError, store_of
from wstrace_exporters.msgpack.storage.urls import StoredObject

#: Blocks of this size are held, so many at most of all objects. Behind one that is held, so many are read at once.
BLOCK_BYTES, _HELD, _AHEAD = 1 << 20, 64, 4


class RemoteInput:
    """An object in a store. stored: the object of a listing. path: its URL without credentials. size: bytes."""

    _blocks: ClassVar[dict[tuple[StoredObject, int], bytes]] = {}  # the oldest first
    _lock = threading.Lock()

    def __init__(self, stored: StoredObject) -> None:
        self._store, self._object = store_of(stored.url), stored
        self.path, self.size = stored.shown, stored.size

    def read(self, at: int, n: int) -> memoryview:
        """n bytes at an offset, fewer at the end of the object."""
        end = min(at + n, self.size)
        if at >= end:
            return memoryview(b"")
        first = at // BLOCK_BYTES
        blocks = [self._block(number) for number in range(first, (end - 1) // BLOCK_BYTES + 1)]
        data = memoryview(b"".join(blocks) if len(blocks) > 1 else blocks[0])
        return data[at - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _block(self, number: int) -> bytes:
        found = self._blocks.get((self._object, number))
        if found is not None:
            return found
        n = _AHEAD if (self._object, number - 1) in self._blocks else 1
        start = number * BLOCK_BYTES
        data = self._store.fetch(self._object, start, min(start + n * BLOCK_BYTES, self.size))
        with self._lock:
            for at in range(0, len(data), BLOCK_BYTES):
                self._blocks[self._object, (start + at) // BLOCK_BYTES] = data[at : at + BLOCK_BYTES]
            while len(self._blocks) > _HELD:
                del self._blocks[next(iter(self._blocks))]
        return data[:BLOCK_BYTES]

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
            for key in [key for key in self._blocks if key[0] == self._object]:
                del self._blocks[key]
