"""wstrace.WriteWatch: memory that reports its written pages; MemoryWatch: all memory."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import Closing, UsageError
from wstrace_plugins.write_watch.backend import backend

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class WriteWatch(Closing):
    """A writable buffer that reports which of its pages were written since the last read.

    It offers the buffer protocol: `numpy.frombuffer(watch, "f4")`, `memoryview(watch)`, `file.readinto(watch)`. Writes
    by the kernel count too (on Windows when it locks the buffer: let I/O into it end before the read that is to see
    it). A new buffer counts as not written. The memory lives as long as anything refers to it, also after close().
    Linux: the first write to a page after a reset costs about 1 us, and splits a transparent huge page permanently; a
    forked child is not watched, and MADV_DONTNEED counts as written.

    Args:
        nbytes: bytes of new zeroed memory.

    Raises:
        UsageError: nbytes is not a positive number.
        Unavailable: this system has no write watch; says what lifts it.
    """

    nbytes: int
    page_size: int
    _watcher: Any
    _start: int

    def __new__(cls, nbytes: int) -> Self:
        """Allocates `nbytes` bytes of zeroed, watched memory."""
        if nbytes <= 0:
            raise UsageError(f"WriteWatch: nbytes is {nbytes}", "give a positive number")
        return cls._over(backend().allocate(nbytes), nbytes)

    def __init__(self, nbytes: int) -> None:
        """Does nothing: ctypes' own __init__ would store its arguments in the memory."""

    @classmethod
    def watch(cls, existing_buffer: ReadableBuffer) -> Self:
        """A watch over existing memory (an array, a bytearray, an mmap), which must not move.

        If it does not begin or end on a page border, writes next to it in the same page are reported too.

        Raises:
            UsageError: it is empty, read-only or not contiguous.
            Unavailable: it is watched already, or this system watches only memory that WriteWatch allocated.
        """
        try:
            view = memoryview(existing_buffer)
        except TypeError as error:
            raise UsageError(f"cannot watch: {error}", "give a writable contiguous buffer") from None
        if view.readonly or not view.c_contiguous or not view.nbytes:
            raise UsageError("cannot watch a buffer that is read-only, empty or not contiguous")
        return cls._over(existing_buffer, view.nbytes)

    @classmethod
    def _over(cls, memory: Any, nbytes: int) -> Self:
        """A watch over a buffer of that many bytes."""
        # in Python 3.11 only a ctypes array can offer a buffer over memory that another object owns
        array = ctypes.c_ubyte * nbytes
        metaclass: Any = type(array)
        kind = metaclass(cls.__name__, (cls, array), {"__doc__": cls.__doc__, "__module__": cls.__module__})
        self: Self = kind.from_buffer(memory)
        self.nbytes = nbytes
        self._start = ctypes.addressof(self)  # type: ignore[arg-type]
        self._watcher = backend().Watcher()
        self.page_size = self._watcher.page_size
        try:
            self._watcher.add(self._start // self.page_size * self.page_size, self._end)
        except BaseException:
            self._watcher.close()
            raise
        return self

    @property
    def _end(self) -> int:
        return -(-(self._start + self.nbytes) // self.page_size) * self.page_size

    def written(self, *, reset: bool = True) -> NDArray[np.int64]:
        """Offsets of the written pages: where each begins, in bytes from the buffer's start, sorted; shape (n,).

        The offset of a page that begins before the buffer is 0.

        Args:
            reset: the pages count as not written from now on; no write in between is lost.

        Raises:
            Unavailable: in a forked child, or when the memory was unmapped.
        """
        # A scan takes the CPU's caches and address translations with it, so that each further call costs 5 to 15 us.
        start, end = self._runs(reset=reset)
        sizes = end - start
        upto = np.add.accumulate(sizes)
        total = int(upto[-1]) if len(upto) else 0
        if total == len(sizes) * self.page_size:
            offsets = start - self._start
        else:
            offsets = (end - upto).repeat(sizes // self.page_size)
            offsets += np.arange(-self._start, total - self._start, self.page_size)
        if len(offsets) and offsets[0] < 0:
            offsets[0] = 0
        return offsets

    def ranges(self, *, reset: bool = True) -> NDArray[np.int64]:
        """Byte ranges of the written pages, adjacent ones joined: start and stop in the buffer, shape (n, 2)."""
        ranges = np.stack(self._runs(reset=reset), axis=1) - self._start
        return np.clip(ranges, 0, self.nbytes)

    def _runs(self, *, reset: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The addresses where runs of written pages begin and end."""
        start, end = self._watcher.ranges(reset=reset)
        return start.view(np.int64), end.view(np.int64)

    def reset(self) -> None:
        """Marks everything as not written."""
        self._watcher.ranges()

    def close(self) -> None:
        """Ends the watch; the memory stays."""
        self._watcher.close()

    def __del__(self) -> None:
        if "_watcher" in self.__dict__:
            self._watcher.close()

    def __repr__(self) -> str:
        return f"<WriteWatch {self.nbytes} bytes at {self._start:#x}>"


class MemoryWatch(Closing):
    """A watch of all writable memory of the calling process; each read includes memory that was mapped meanwhile.

    Memory that another watch covers is left to that one. Arming costs about 10 ms per GiB in memory. MADV_DONTNEED
    counts as written, as in a WriteWatch; for that the present pages are remembered, 16 bytes per run of them.

    Raises:
        Unavailable: this system has no write watch for existing memory.
    """

    def __init__(self) -> None:
        self._watcher = backend().Watcher()
        self.page_size: int = self._watcher.page_size
        try:
            self.watched_bytes: int = self._watcher.add_writable()
        except BaseException:
            self._watcher.close()
            raise

    def written(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Runs of pages written since the last read: addresses u64, page counts u32, sorted; shape (n,) each."""
        start, end = self._watcher.ranges()
        return start, ((end - start) // np.uint64(self.page_size)).astype("<u4")

    def reset(self) -> None:
        """Marks everything watched as not written; unlike written() it writes hardly any memory itself."""
        self._watcher.reset()

    def close(self) -> None:
        """Ends the watch."""
        self._watcher.close()
