"""Write watch on Windows: memory of the calling process, allocated with MEM_WRITE_WATCH, queried by GetWriteWatch.

GetWriteWatch with WRITE_WATCH_FLAG_RESET returns and resets the pages in one step. With ResetWriteWatch, a page written
between the two calls would be missed, as Microsoft's page says, so it is not used.
The state belongs to the region, so one watch at a time covers it.

Source: Microsoft Learn, memoryapi.h: VirtualAlloc, GetWriteWatch, ResetWriteWatch.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from wstrace.errors import Unavailable
from wstrace.interfaces import Level
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Runs = tuple[NDArray[Any], NDArray[Any]]

PAGE = 4096
_CAPACITY = 1 << 16  # the most addresses of one call; further calls return the rest
_WHY = "Windows tracks writes only in memory that was allocated for it (MEM_WRITE_WATCH)"
_REMEDY = "let wstrace.WriteWatch(nbytes) allocate it"

#: the watcher of each region that is watched
_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()


def probe() -> Level:
    """The level of a watch of all memory: none."""
    return Level("none", _WHY, _REMEDY)


def allocate(nbytes: int, api: WindowsApi = winapi) -> Any:
    """Allocates zeroed memory of whole pages whose writes are tracked; freed with its last reference.

    Raises:
        Unavailable: there is no room, or the system does not track writes.
    """
    size = -(-nbytes // PAGE) * PAGE
    kinds = winapi.MEM_RESERVE | winapi.MEM_COMMIT | winapi.MEM_WRITE_WATCH
    start = api.VirtualAlloc(None, size, kinds, winapi.PAGE_READWRITE)
    if not start:
        raise winapi.failed("VirtualAlloc", api.GetLastError(), f"of {size} bytes with MEM_WRITE_WATCH")
    kind: Any = type("WriteWatchMemory", (ctypes.c_ubyte * nbytes,), {})  # a class of its own is weakly referable
    memory = kind.from_address(start)
    # Not at the interpreter's exit, when arrays over the memory are alive and threads may write to it.
    weakref.finalize(memory, api.VirtualFree, start, 0, winapi.MEM_RELEASE).atexit = False
    return memory


def open_watcher() -> NoReturn:
    """Raises Unavailable: Windows can only watch memory that was allocated for it."""
    raise Unavailable(_WHY, _REMEDY)


class Watcher:
    """A watch of memory of the calling process.

    Args:
        api: wstrace_plugins.os.windows.api or a stand-in.

    Raises:
        Unavailable: the system does not track writes.
    """

    page_size = PAGE

    def __init__(self, api: WindowsApi = winapi) -> None:
        self._api = api
        self.region = 0, 0
        self._addresses = np.zeros(_CAPACITY, "<u8")
        self._count = np.zeros(1, "<u8")  # a ULONG_PTR, in and out, in elements
        self._granularity = np.zeros(1, "<u4")  # a ULONG
        self._prove()

    def add(self, start: int, end: int) -> None:
        """Begins to watch the pages in [start, end), none of which counts as written yet. Raises Unavailable."""
        if any(start < one.region[1] and one.region[0] < end for one in _watchers):
            raise Unavailable(f"the memory at {start:#x}-{end:#x} is watched already", "close the other watch first")
        if self._api.GetWriteWatch(0, start, end - start, *self._arguments()):
            raise Unavailable(f"cannot watch the memory at {start:#x}-{end:#x}: {_WHY}", _REMEDY)
        self.region = start, end
        _watchers.add(self)
        self.written()

    def add_writable(self) -> int:
        """Raises Unavailable: Windows can only watch memory that was allocated for it."""
        open_watcher()

    def reset(self) -> None:
        """Marks all watched pages as not written."""
        self.written()

    def written(self, *, reset: bool = True) -> Runs:
        """Runs of written pages: their addresses (u64) and numbers of pages (u32).

        Args:
            reset: whether the pages count as not written afterwards.

        Raises:
            Unavailable: the memory was freed.
        """
        pages = np.concatenate([*self._collect(reset=reset), np.zeros(0, "<u8")])
        first = np.flatnonzero(np.diff(pages, prepend=np.uint64(0)) != self.page_size)
        if len(pages) and (not len(first) or first[0]):
            first = np.concatenate(([0], first))
        return pages[first], np.diff(first, append=len(pages)).astype("<u4")

    def ranges(self, *, reset: bool = True) -> Runs:
        """As written(), but where the runs begin and end (u64)."""
        start, pages = self.written(reset=reset)
        return start, start + pages.astype("<u8") * np.uint64(self.page_size)

    def close(self) -> None:
        """Ends the watch."""
        self.region = 0, 0
        _watchers.discard(self)

    def _arguments(self) -> tuple[int, int, int]:
        self._count[0] = len(self._addresses)
        return self._addresses.ctypes.data, self._count.ctypes.data, self._granularity.ctypes.data

    def _collect(self, *, reset: bool) -> Iterator[NDArray[np.uint64]]:
        """Yields the addresses of written pages, in order, by as many calls of GetWriteWatch as it takes."""
        start, end = self.region
        flag = winapi.WRITE_WATCH_FLAG_RESET if reset else 0
        while start < end:
            if self._api.GetWriteWatch(flag, start, end - start, *self._arguments()):
                raise Unavailable(
                    f"GetWriteWatch of {start:#x}-{end:#x} failed with {self._api.GetLastError()}: the memory is gone",
                    "make a new watch",
                )
            count = int(self._count[0])
            self.page_size = int(self._granularity[0]) or PAGE
            yield self._addresses[:count].copy()
            if count < len(self._addresses):
                break
            start = int(self._addresses[count - 1]) + self.page_size

    def _prove(self) -> None:
        """Writes to the second of three fresh pages and expects to see it alone.

        A system that does not track writes could otherwise look like memory without writes.
        """
        memory = allocate(3 * PAGE, self._api)
        start = ctypes.addressof(memory)
        self.region = start, start + 3 * PAGE
        memory[PAGE] = 1
        seen = [self.written()[0].tolist(), self.written()[0].tolist()]
        self.region = 0, 0
        if seen != [[start + PAGE], []]:
            raise Unavailable("GetWriteWatch did not see a write of its own", "please report this Windows's version")
