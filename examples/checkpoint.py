"""How do I save a large array again and again, writing only what changed, and get it back?

    python examples/checkpoint.py

WriteWatch gives memory that numpy uses like any other, and knows which of its pages were written since the last reset.
A checkpoint is one file to which each save appends (offset, length, bytes) of the ranges that changed; restoring plays
it from the start. No copy is kept and nothing is compared.
"""

from __future__ import annotations

import struct
import tempfile
import time
from pathlib import Path

import numpy as np

import wstrace

RANGE = struct.Struct("<QQ")  # where the bytes that follow belong, and how many


class Checkpoint:
    """An array whose changes are appended to a file."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: str) -> None:
        n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._watch = wstrace.WriteWatch(n_bytes)
        self._bytes = memoryview(self._watch)
        self._file = path.open("ab")
        self.array = np.frombuffer(self._watch, dtype).reshape(shape)

    def save(self) -> int:
        """Appends what was written since the last save; gives the bytes appended."""
        before = self._file.tell()
        for start, stop in self._watch.ranges().tolist():
            self._file.write(RANGE.pack(start, stop - start))
            self._file.write(self._bytes[start:stop])
        self._file.flush()
        return self._file.tell() - before

    def close(self) -> None:
        """Ends the watch; the array stays."""
        self._file.close()
        self._watch.close()


def restore(path: Path, array: np.ndarray) -> None:
    """Plays a checkpoint back into an array of the same shape and type."""
    into = array.reshape(-1).view("u1")
    with path.open("rb") as file:
        while head := file.read(RANGE.size):
            start, length = RANGE.unpack(head)
            file.readinto(into[start : start + length])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights.ckpt")
        checkpoint = Checkpoint(path, (16_384, 1024), "f4")  # 64 MiB
        weights = checkpoint.array
        weights[:] = np.random.default_rng(1).random(weights.shape, "f4")
        for step, rows in enumerate((slice(None), slice(100, 110), slice(5000, 5400, 8))):
            weights[rows] += 1
            began = time.perf_counter()
            saved = checkpoint.save()
            took = time.perf_counter() - began
            print(f"save {step}: {saved / 2**20:8.2f} MiB of {weights.nbytes / 2**20:.0f} MiB in {took * 1e3:6.1f} ms")
        again = np.zeros_like(weights)
        restore(path, again)
        print("restored:", "the same" if np.array_equal(again, weights) else "NOT the same")
        checkpoint.close()


if __name__ == "__main__":
    main()
