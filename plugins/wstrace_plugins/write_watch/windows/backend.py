"""Write watch on Windows: memory of the calling process, allocated with MEM_WRITE_WATCH, queried by GetWriteWatch.

GetWriteWatch with WRITE_WATCH_FLAG_RESET returns and resets the pages in one step. With ResetWriteWatch, a page written
between the two calls would be missed, as Microsoft's page says, so it is not used.
The state belongs to the region, so each region has one watcher, as on Linux.

Source: Microsoft Learn, memoryapi.h: VirtualAlloc, GetWriteWatch, ResetWriteWatch.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from wstrace.batch import Columns, Dictionary
from wstrace.errors import Unavailable
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.intervals import Ranges, union
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.memory import Memory, columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGE = 4096
_CAPACITY = 1 << 16  # the most addresses of one call; further calls return the rest

_NOT_ALLOCATED = "Windows tracks writes only in memory that was allocated for it (MEM_WRITE_WATCH)"
_ALLOCATE = "let wstrace.WriteWatch(nbytes) allocate it"

_lock = threading.RLock()
#: start -> end of live memory that allocate() made
_allocations: dict[int, int] = {}
_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()


def allocate(nbytes: int, api: WindowsApi = winapi) -> Any:
    """Allocates zeroed memory of whole pages whose writes are tracked; freed with its last reference.

    Raises Unavailable: there is no room, or the system does not track writes.
    """
    memory = _allocate(nbytes, api)
    start = ctypes.addressof(memory)
    with _lock:
        _allocations[start] = start + -(-nbytes // PAGE) * PAGE
    return memory


def _allocate(nbytes: int, api: WindowsApi) -> Any:
    size = -(-nbytes // PAGE) * PAGE
    kinds = winapi.MEM_RESERVE | winapi.MEM_COMMIT | winapi.MEM_WRITE_WATCH
    start = api.VirtualAlloc(None, size, kinds, winapi.PAGE_READWRITE)
    if not start:
        raise winapi.failed("VirtualAlloc", api.GetLastError(), f"of {size} bytes with MEM_WRITE_WATCH")
    kind: Any = type("WriteWatchMemory", (ctypes.c_ubyte * nbytes,), {})  # a class of its own is weakly referable
    memory = kind.from_address(start)
    # Not at the interpreter's exit, when arrays over the memory are alive and threads may write to it.
    weakref.finalize(memory, _free, api, start).atexit = False
    return memory


def _free(api: WindowsApi, start: int) -> None:
    with _lock:
        _allocations.pop(start, None)
        api.VirtualFree(start, 0, winapi.MEM_RELEASE)


def mappings(strings: Dictionary, api: WindowsApi = winapi) -> Columns:
    """The columns of this process's allocations."""
    return columns(list(Memory(api, api.GetCurrentProcess()).allocations()), strings)


def open_watcher(api: WindowsApi = winapi) -> Watcher:
    """A watcher of all memory of this process that WriteWatch allocated and will allocate, with nothing written yet."""
    watcher = Watcher(api)
    watcher.everything = True
    watcher.ranges()
    return watcher


class Watcher:
    """A watch of memory of the calling process. Raises Unavailable: the system does not track writes."""

    page_size = PAGE

    def __init__(self, api: WindowsApi = winapi) -> None:
        self._api = api
        self._ranges: list[tuple[int, int]] = []
        self.everything = False
        self._addresses = np.zeros(_CAPACITY, "<u8")
        self._count = np.zeros(1, "<u8")  # a ULONG_PTR, in and out, in elements
        self._granularity = np.zeros(1, "<u4")  # a ULONG
        self._prove()
        with _lock:
            _watchers.add(self)

    def add(self, start: int, end: int) -> None:
        """Begins to watch the pages in [start, end), none of which counts as written yet. Raises Unavailable."""
        with _lock:
            if _is_watched(start, end):
                raise Unavailable(
                    f"the memory at {start:#x}-{end:#x} is watched already", "close the other watch first"
                )
            if self._api.GetWriteWatch(0, start, end - start, *self._arguments()):
                raise Unavailable(f"cannot watch the memory at {start:#x}-{end:#x}: {_NOT_ALLOCATED}", _ALLOCATE)
            self._collect(start, end, reset=True)
            self._ranges.append((start, end))

    def add_writable(self) -> int:
        """Raises Unavailable: Windows can only watch memory that was allocated for it."""
        raise Unavailable(_NOT_ALLOCATED, _ALLOCATE)

    def reset(self) -> None:
        """Marks all watched pages as not written."""
        self.ranges()

    def ranges(self, *, reset: bool = True) -> Ranges:
        """Where the runs of written pages begin and end (u64).

        reset: whether the pages count as not written afterwards. Raises Unavailable: some of the memory was freed.
        """
        with _lock:
            own = [one for one in _allocations.items() if not _is_watched(*one)] if self.everything else self._ranges
            found = [page for one in own for page in self._collect(*one, reset=reset)]
        pages = np.concatenate([*found, np.zeros(0, "<u8")])
        return union(pages, pages + np.uint64(self.page_size))

    def close(self) -> None:
        """Ends all watching."""
        with _lock:
            self._ranges = []
            _watchers.discard(self)

    after_fork_in_child = close

    def _arguments(self) -> tuple[int, int, int]:
        self._count[0] = len(self._addresses)
        return self._addresses.ctypes.data, self._count.ctypes.data, self._granularity.ctypes.data

    def _collect(self, start: int, end: int, *, reset: bool) -> list[NDArray[np.uint64]]:
        """The addresses of written pages, by as many calls of GetWriteWatch as it takes."""
        found, flag = [], winapi.WRITE_WATCH_FLAG_RESET if reset else 0
        while start < end:
            if self._api.GetWriteWatch(flag, start, end - start, *self._arguments()):
                raise Unavailable(
                    f"GetWriteWatch of {start:#x}-{end:#x} failed with {self._api.GetLastError()}: the memory is gone",
                    "make a new watch",
                )
            self.page_size = int(self._granularity[0]) or PAGE
            found.append(self._addresses[: int(self._count[0])].astype("<u8"))
            if self._count[0] < len(self._addresses):
                break
            start = int(found[-1][-1]) + self.page_size
        return found

    def _prove(self) -> None:
        """Writes to the second of three fresh pages and expects to see it alone.

        A system that does not track writes could otherwise look like memory without writes.
        """
        memory = _allocate(3 * PAGE, self._api)
        start = ctypes.addressof(memory)
        self._ranges = [(start, start + 3 * PAGE)]
        memory[PAGE] = 1
        seen = [self.ranges()[0].tolist(), self.ranges()[0].tolist()]
        self._ranges = []
        if seen != [[start + PAGE], []]:
            raise Unavailable("GetWriteWatch did not see a write of its own", "please report this Windows's version")


def _is_watched(start: int, end: int) -> bool:
    """Whether a watcher that was given it has some of this memory."""
    return any(first < end and start < last for one in list(_watchers) for first, last in one._ranges)
