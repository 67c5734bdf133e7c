"""The allocations of a process on Windows and the files behind them, as ADDRESS_SPACE columns.

Windows does not report new mappings, so they are queried: VirtualQueryEx gives the allocation of an address (for an
image, AllocationBase is the module's load address), GetMappedFileNameW the file behind it. Both fail once the process
has exited. A row is one allocation; `offset` of an image is 0, so that an offset into it is an RVA.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wstrace import schema
from wstrace.batch import Columns, Dictionary
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.layouts import MEMORY_BASIC_INFORMATION
from wstrace_plugins.os.windows.paths import drive_path, utf16
from wstrace_plugins.os.windows.process import KERNEL_BASE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GRANULARITY = 16  # allocations start at multiples of 64 KiB
_MAX_REGIONS = 4096  # regions read of one allocation; a hostile target may have millions
_MAX_QUESTIONS = 512  # unknown places that one discover() queries; later calls query the others
_RECHECK_SECONDS = 0.1
_MAX_PLACES = 1 << 14  # of which it is known when they were queried
_PATH_CHARS = 32_768  # a path under \\?\ may be longer than MAX_PATH

_READABLE = winapi.PAGE_READONLY | winapi.PAGE_READWRITE | winapi.PAGE_WRITECOPY
_EXECUTABLE = (
    winapi.PAGE_EXECUTE | winapi.PAGE_EXECUTE_READ | winapi.PAGE_EXECUTE_READWRITE | winapi.PAGE_EXECUTE_WRITECOPY
)
_WRITABLE = winapi.PAGE_READWRITE | winapi.PAGE_EXECUTE_READWRITE
_WRITECOPY = winapi.PAGE_WRITECOPY | winapi.PAGE_EXECUTE_WRITECOPY


class Region(NamedTuple):
    """A MEMORY_BASIC_INFORMATION: consecutive pages with equal attributes."""

    base: int
    allocation: int
    allocation_protect: int
    size: int
    state: int
    protect: int
    type: int


class Allocation(NamedTuple):
    """The memory [start, end) of one VirtualAlloc, MapViewOfFile or loaded image.

    start, end: addresses. type: MEM_PRIVATE, MEM_MAPPED or MEM_IMAGE. protect: the protection (PAGE_*) that it was made
    with. file: the path of the file behind it, "" for none. stack: whether it is the stack of a thread. committed: the
    present protections of its committed pages, or-ed; 0 without such pages.
    """

    start: int
    end: int
    type: int
    protect: int
    file: str
    stack: bool
    committed: int = 0

    @property
    def name(self) -> str:
        """The path of the file, or `[anon]`, `[stack]`, `[shared memory]`."""
        if self.file:
            return self.file
        return "[stack]" if self.stack else "[anon]" if self.type == winapi.MEM_PRIVATE else "[shared memory]"

    @property
    def flags(self) -> int:
        """MAP_* bits and kind, as in ADDRESS_SPACE. An image is private, because its written pages are copied.

        The rights are those of the committed pages, because memory may be reserved without any.
        """
        kind = schema.KIND_FILE if self.file else schema.KIND_STACK if self.stack else schema.KIND_ANON
        if not self.file and self.type != winapi.MEM_PRIVATE:
            kind = schema.KIND_SHARED
        flags = kind << schema.KIND_SHIFT
        image = self.type == winapi.MEM_IMAGE
        rights = self.protect if image or not self.committed else self.committed
        if rights & (_READABLE | _EXECUTABLE):
            flags |= schema.MAP_READ
        if rights & (_WRITABLE | (0 if image else _WRITECOPY)):
            flags |= schema.MAP_WRITE
        if rights & _EXECUTABLE:
            flags |= schema.MAP_EXECUTE
        if self.type == winapi.MEM_MAPPED and not self.protect & _WRITECOPY:
            flags |= schema.MAP_SHARED
        return flags

    @property
    def offset(self) -> int:
        """The offset in its file: 0 for an image (an RVA), OFFSET_UNKNOWN for a view, which Windows does not give."""
        return schema.OFFSET_UNKNOWN if self.file and self.type != winapi.MEM_IMAGE else 0


class Memory:
    """Queries the memory of one process.

    handle: a handle with PROCESS_QUERY_INFORMATION and PROCESS_VM_READ, which the caller closes.
    """

    def __init__(self, api: WindowsApi, handle: int) -> None:
        self._api, self._handle = api, handle
        self._information = np.zeros(1, MEMORY_BASIC_INFORMATION)
        self._path = np.zeros(_PATH_CHARS, "<u2")

    def region(self, address: int) -> Region | None:
        """The region around an address; None past the end of the address space or after the process's exit."""
        information = self._information
        done = self._api.VirtualQueryEx(self._handle, address, information.ctypes.data, information.itemsize)
        return Region(*information[0].item()) if done else None

    def regions(self, start: int = 0) -> Iterator[Region]:
        """Yields all regions from an address on, including free ones."""
        while (region := self.region(start)) is not None and region.size:
            yield region
            start = region.base + region.size

    def allocation(self, address: int) -> Allocation | None:
        """The allocation around an address; None for free memory."""
        region = self.region(address)
        if region is None or region.state == winapi.MEM_FREE:
            return None
        return self._allocation(self.regions(region.allocation), region.allocation)[0]

    def allocations(self) -> Iterator[Allocation]:
        """Yields all allocations with ascending addresses."""
        regions = self.regions()
        region = next(regions, None)
        while region is not None:
            if region.state == winapi.MEM_FREE:
                region = next(regions, None)
                continue
            allocation, region = self._allocation(itertools.chain([region], regions), region.allocation)
            if allocation is not None:
                yield allocation

    def _allocation(self, regions: Iterator[Region], base: int) -> tuple[Allocation | None, Region | None]:
        """The allocation that the regions begin with, and the first region behind it."""
        first, end, guard, committed = None, base, False, 0
        for count, region in enumerate(regions):
            if region.state == winapi.MEM_FREE or region.allocation != base or count == _MAX_REGIONS:
                following: Region | None = region
                break
            first = first or region
            end = region.base + region.size
            guard |= bool(region.protect & winapi.PAGE_GUARD)
            committed |= region.protect if region.state == winapi.MEM_COMMIT else 0
        else:
            following = None
        if first is None:
            return None, following
        file = self.file_of(first)
        stack = guard and first.type == winapi.MEM_PRIVATE  # only stacks grow by guard pages (observed)
        return Allocation(first.base, end, first.type, first.allocation_protect, file, stack, committed), following

    def file_of(self, region: Region) -> str:
        """The path of the file behind a region; "" for private memory, without a query."""
        return "" if region.type == winapi.MEM_PRIVATE else self.file(region.base)

    def file(self, address: int) -> str:
        """The path of the file mapped at an address, with its drive letter; "" for memory without a file."""
        count = self._api.GetMappedFileNameW(self._handle, address, self._path.ctypes.data, _PATH_CHARS)
        return drive_path(self._api, utf16(self._path[:count])) if count else ""


class AddressSpace:
    """The known memory of a process; returns rows for what is new. For one thread.

    memory: queries the process. pid: the process, for the rows. strings: the dictionary for paths.
    """

    def __init__(self, memory: Memory, pid: int, strings: Dictionary) -> None:
        self._memory, self._pid, self._strings = memory, pid, strings
        self._known: dict[int, Allocation] = {}
        self._due: dict[int, float] = {}  # place -> when it may be queried again
        self._starts = self._ends = np.zeros(0, "<u8")

    def listing(self, now: int) -> Columns:
        """A full listing at the time `now` (ns) as ADDRESS_SPACE rows, the first of them with the event `replace`."""
        self._known = {allocation.start: allocation for allocation in self._memory.allocations()}
        self._index()
        rows = self._rows([(schema.SPACE_MAP, allocation) for allocation in self._known.values()], now)
        rows["event"][:1] = schema.SPACE_REPLACE
        return rows

    def discover(self, addresses: NDArray[np.uint64], now: int) -> Columns:
        """ADDRESS_SPACE rows for new or changed allocations at these addresses, u64, shape (n,).

        A call queries at most _MAX_QUESTIONS unknown places. Known allocations, and places without memory, are queried
        again after 0.1 s at the earliest. Addresses of the kernel are not queried.
        """
        addresses = addresses[addresses < np.uint64(KERNEL_BASE)]
        chunks = np.unique(addresses >> np.uint64(_GRANULARITY)) << np.uint64(_GRANULARITY)
        place = np.searchsorted(self._starts, chunks + np.uint64((1 << _GRANULARITY) - 1), "right") - 1
        covered = chunks < np.append(self._ends, np.uint64(0))[place]  # before the first one, the place is that 0
        events: list[tuple[int, Allocation]] = []
        for start in np.unique(self._starts[place[covered]]).tolist():
            if self._may_ask(start) and self._has_changed(start):
                events.append((schema.SPACE_UNMAP, self._known.pop(start)))
                self._ask(start, events)
        for chunk in chunks[~covered][:_MAX_QUESTIONS].tolist():
            if not any(known.start <= chunk < known.end for _, known in events[-8:]) and self._may_ask(chunk):
                self._ask(chunk, events)
        if events:
            self._index()
        return self._rows(events, now)

    def _may_ask(self, place: int) -> bool:
        """Whether a place was not queried just before; then it is now."""
        now = time.perf_counter()
        if self._due.get(place, now) > now:
            return False
        if len(self._due) >= _MAX_PLACES:
            self._due.clear()
        self._due[place] = now + _RECHECK_SECONDS
        return True

    def _has_changed(self, start: int) -> bool:
        """Whether something else is where a known allocation begins."""
        region, known = self._memory.region(start), self._known[start]
        if region is None:  # the process has exited: keep what is known for its last records
            return False
        same = region.state != winapi.MEM_FREE and region.allocation == start and region.type == known.type
        return not (same and region.allocation_protect == known.protect and self._memory.file_of(region) == known.file)

    def _ask(self, address: int, events: list[tuple[int, Allocation]]) -> None:
        """Queries an address that no known allocation has; adds what is there to the events."""
        allocation = self._memory.allocation(address)
        if allocation is None:
            return
        if allocation.start in self._known:  # the address lies behind the regions that are read of it
            self._due[address] = float("inf")
            return
        stale = [s for s, known in self._known.items() if s < allocation.end and allocation.start < known.end]
        events.extend((schema.SPACE_UNMAP, self._known.pop(start)) for start in stale)
        self._known[allocation.start] = allocation
        events.append((schema.SPACE_MAP, allocation))

    def _index(self) -> None:
        starts = sorted(self._known)
        self._starts = np.array(starts, "<u8")
        self._ends = np.array([self._known[start].end for start in starts], "<u8")

    def _rows(self, events: list[tuple[int, Allocation]], now: int) -> Columns:
        """The events as rows of ADDRESS_SPACE."""
        allocations = [allocation for _, allocation in events]
        rows = columns(allocations, self._strings)
        count = len(events)
        return {
            "time_ns": np.full(count, now, "<u8"),
            "pid": np.full(count, self._pid, "<u4"),
            "event": np.array([event for event, _ in events], "|u1"),
            **rows,
        }


def columns(allocations: list[Allocation], strings: Dictionary) -> Columns:
    """The columns start, end, offset, file and flags of allocations; Windows does not give dev and ino here."""
    return {
        "start": np.array([a.start for a in allocations], "<u8"),
        "end": np.array([a.end for a in allocations], "<u8"),
        "offset": np.array([a.offset for a in allocations], "<u8"),
        "file": np.array([strings.code(a.name) for a in allocations], "<u4"),
        "flags": np.array([a.flags for a in allocations], "<u2"),
    }
