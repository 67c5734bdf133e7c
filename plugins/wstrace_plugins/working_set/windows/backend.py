"""Resident pages on Windows: QueryWorkingSet, QueryWorkingSetEx and EmptyWorkingSet.

Source: Microsoft Learn, psapi.h: QueryWorkingSet, QueryWorkingSetEx, EmptyWorkingSet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from wstrace.batch import Columns, Dictionary
from wstrace.errors import Closing, TargetExited, Unavailable
from wstrace.interfaces import Level
from wstrace.schema import KIND_FILE, KIND_KERNEL, KIND_SHIFT, PAGE_EXCLUSIVE, PAGE_FILE, PAGE_LOCKED, PAGE_SHARED
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows import token
from wstrace_plugins.os.windows.layouts import PSAPI_WORKING_SET_BLOCK, PSAPI_WORKING_SET_EX_INFORMATION
from wstrace_plugins.os.windows.memory import Memory, columns
from wstrace_plugins.working_set.backend import Accounted
from wstrace_plugins.working_set.windows import blocks as windows_blocks
from wstrace_plugins.working_set.windows.blocks import PAGE

if TYPE_CHECKING:
    from numpy.typing import NDArray


_FIRST_ENTRIES = 1 << 14
_MAX_ENTRIES = 1 << 28  # 1 TiB of pages
_EX_ENTRIES = 1 << 16
REASONS = (
    "in use: brought back since, or kept by the system",
    "locked in memory (VirtualLock)",
    "shared with the system",
)


def probe() -> Level:
    """full, tried on the calling process. Raises Unavailable."""
    with Space(os.getpid()) as space:
        space.runs(space.mappings(Dictionary()))
    return Level("full")


def _refusing(why: str, remedy: str = "") -> Callable[..., NoReturn]:
    """A function that raises Unavailable: what Windows cannot do."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise Unavailable(why, remedy)

    return refuse


make_keeper = _refusing("Windows frees the memory of a process at its end", "-s working_set takes snapshots until then")
clear_referenced = _refusing("Windows does not report which pages were used", "use --by-emptying")
file_heat = _refusing("Windows does not say which pages of a file are in memory", "wstrace snapshot PID --by mapping")
distinct = _refusing("Windows does not say which pages of two processes are one")
watched_cgroups = _refusing("Windows has no control groups", "use rss=, growth= or end")


def descendants(pid: int) -> list[int]:
    """The pids of all present descendants of a process. Raises TargetExited, Unavailable."""
    return processes.born_since(winapi, pid)


def listed(api: WindowsApi = winapi) -> Iterator[tuple[int, int, str, str, int]]:
    """Every process with a working set; a parent's pid may have been reused; users are not named here."""
    for one in processes.listed(api):
        if one.resident:
            yield one.pid, one.parent, one.name, "", one.resident


def size(pid: int) -> tuple[int, int]:
    """The working set of a process in bytes, and its faults so far; zeros where it has ended or is refused."""
    try:
        with processes.opened(winapi, pid, winapi.PROCESS_QUERY_LIMITED_INFORMATION) as handle:
            found = processes.counters(winapi, handle)
    except Unavailable:
        return 0, 0
    return (found.working_set, found.page_faults) if found is not None else (0, 0)


def accounted(pid: int, api: WindowsApi = winapi) -> Accounted:
    """Bytes of pages that no other process can share; Windows gives neither the size of large pages nor a Pss here."""
    try:
        with Space(pid, api) as space:
            blocks = space.query()
            ours = (blocks & windows_blocks.SHARED == 0) & ~space.of_kernel(blocks)
            return Accounted(int(ours.sum()) * PAGE)
    except Unavailable:
        return Accounted()


def arguments(_: int) -> tuple[str, ...]:
    """(): other processes' command lines are not read here."""
    return ()


def faults() -> tuple[int, int | None]:
    """(page faults of the calling process so far, None): Windows counts minor and major faults together."""
    counters = processes.counters(winapi, winapi.GetCurrentProcess())
    return (counters.page_faults if counters is not None else 0), None


class Space(Closing):
    """An opened process. Raises TargetExited: there is no such process; Unavailable: access is refused."""

    page_size = PAGE

    def __init__(self, pid: int, api: WindowsApi = winapi) -> None:
        self.pid, self._api = pid, api
        if pid == api.GetCurrentProcessId():  # Wine answers for the calling process only, and only by this handle
            self._handle: int = api.GetCurrentProcess()
        else:
            self._handle = winapi.open_process(api, pid, winapi.QUERY_RIGHTS | winapi.SYNCHRONIZE)
        self.name = processes.name(api, self._handle, pid)
        self._blocks: NDArray[Any] = np.zeros(0, "<u8")

    def mappings(self, strings: Dictionary) -> Columns:
        """The columns of its allocations, with a row for each range of pages outside of them, as in the kernel."""
        self._blocks = self.query()  # pages first, then allocations, so that every page gets a row
        allocations = list(Memory(self._api, self._handle).allocations())
        known = columns(allocations, strings)
        pages = self._blocks & windows_blocks.ADDRESS
        at = np.searchsorted(known["start"], pages, "right") - 1
        covered = (at >= 0) & (pages < known["end"][at]) if allocations else np.zeros(len(pages), bool)
        if covered.all():
            return known
        return _merged(known, _strays(pages[~covered], strings))

    def query(self) -> NDArray[Any]:
        """The PSAPI_WORKING_SET_BLOCKs of QueryWorkingSet by address, without their NUMA nodes, shape (n,).

        Microsoft's page gives ERROR_BAD_LENGTH for a buffer that is too small; ERROR_NOACCESS with a larger number of
        entries was observed too.
        Raises TargetExited: the process has ended; Unavailable: the system refuses.
        """
        counters = processes.counters(self._api, self._handle)
        expected = counters.working_set // PAGE if counters is not None else 0
        entries = min(max(expected + expected // 4, _FIRST_ENTRIES), _MAX_ENTRIES)
        while True:
            buffer = np.empty(entries + 1, PSAPI_WORKING_SET_BLOCK)
            buffer[0] = 0
            if self._api.QueryWorkingSet(self._handle, buffer.ctypes.data, buffer.nbytes):
                count = min(int(buffer[0]), entries)
                return np.sort(buffer[1 : count + 1] & ~windows_blocks.NODE, kind="stable")
            code = self._api.GetLastError()
            small = code == winapi.ERROR_BAD_LENGTH or (code == winapi.ERROR_NOACCESS and int(buffer[0]) > entries)
            if not small or entries >= _MAX_ENTRIES:
                raise self._refused("QueryWorkingSet", code)
            needed = max(int(buffer[0]), entries)  # the working set may grow before the next call: add slack
            entries = min(needed + needed // 4 + 1024, _MAX_ENTRIES)

    def runs(self, mappings: Columns, *, shares: bool = False) -> Columns:
        """Runs of resident pages, as linux/space.py has them. A share count of 7 means 7 or more."""
        blocks = self._with_locked(self._blocks if shares else self._blocks & ~windows_blocks.SHARES)
        index, pages = windows_blocks.runs(blocks, mappings["start"])
        first = blocks[index]
        start = first & windows_blocks.ADDRESS
        row = (np.searchsorted(mappings["start"], start, "right") - 1).astype("<u4")
        flags = windows_blocks.flags(first)
        is_file = (mappings["flags"][row] >> KIND_SHIFT) & 15 == KIND_FILE
        flags |= is_file * np.uint16(PAGE_FILE)
        flags[self.of_kernel(start)] &= ~np.uint16(PAGE_EXCLUSIVE | PAGE_SHARED)  # neither Private nor Shared
        columns = {"start": start, "pages": pages, "flags": flags, "row": row}
        if shares:
            columns["shares"] = np.maximum((first & windows_blocks.SHARES) >> np.uint64(5), 1).astype("|u1")
        return columns

    def _with_locked(self, blocks: NDArray[Any]) -> NDArray[Any]:
        """The blocks with LOCKED and LARGE from QueryWorkingSetEx, which is not called for kernel pages."""
        ours = np.flatnonzero(~self.of_kernel(blocks))
        marked: NDArray[Any] = blocks.copy()
        rows = np.zeros(min(len(ours), _EX_ENTRIES), PSAPI_WORKING_SET_EX_INFORMATION)
        for at in range(0, len(ours), _EX_ENTRIES):
            some, each = rows[: len(ours) - at], ours[at : at + _EX_ENTRIES]
            some["VirtualAddress"], some["VirtualAttributes"] = blocks[each] & windows_blocks.ADDRESS, 0
            if not self._api.QueryWorkingSetEx(self._handle, some.ctypes.data, some.nbytes):
                refused = self._refused("QueryWorkingSetEx", self._api.GetLastError())
                if isinstance(refused, TargetExited):
                    raise refused
                return blocks  # of another process, in Wine: locked pages are not known
            known = some["VirtualAttributes"]
            for bit, mark in ((22, windows_blocks.LOCKED), (23, windows_blocks.LARGE)):
                marked[each] |= (known & 1) * (known >> np.uint64(bit) & 1) * mark  # of a valid page
        return marked

    def of_kernel(self, blocks: NDArray[Any]) -> NDArray[np.bool_]:
        """A mask of the pages of the kernel; in a process's working set each counts as a page table.

        The only others are working-set lists, which serve the process in the same way.
        """
        found: NDArray[np.bool_] = blocks >= np.uint64(processes.KERNEL_BASE)
        return found

    def uncounted(self) -> tuple[int | None, int | None]:
        """Bytes of page tables if any are listed; large pages are not known."""
        return int(self.of_kernel(self._blocks).sum()) * PAGE or None, None

    def empty(self, mappings: Columns, runs: Columns) -> None:
        """Calls EmptyWorkingSet. No data is lost."""
        with processes.opened(self._api, self.pid, winapi.EMPTY_RIGHTS) as handle:
            if not self._api.EmptyWorkingSet(handle):
                raise self._refused("EmptyWorkingSet", self._api.GetLastError())

    def why_stayed(self, mappings: Columns, runs: Columns) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
        """Why each run is still resident: u8 indexes, shape (n,), into the tuple of texts."""
        codes = np.zeros(len(runs["start"]), "|u1")
        codes[runs["flags"] & PAGE_LOCKED != 0] = 1
        kernel = (mappings["flags"][runs["row"]] >> KIND_SHIFT) & 15 == KIND_KERNEL
        codes[kernel] = 2
        return codes, REASONS

    def owned(self) -> bool:
        """Whether the process runs as the calling user, by its token; False when the token is refused."""
        try:
            return token.user(self._api, self._handle) == token.user(self._api, self._api.GetCurrentProcess())
        except Unavailable:
            return False

    def close(self) -> None:
        """Closes the handle."""
        if self._handle:
            self._api.CloseHandle(self._handle)
            self._handle = 0

    def _refused(self, call: str, code: int) -> Unavailable:
        if processes.exited(self._api, self._handle):
            return TargetExited(f"process {self.pid} ({self.name}) ended while it was read")
        return winapi.failed(call, code, f"of pid {self.pid}")


def _strays(pages: NDArray[Any], strings: Dictionary) -> Columns:
    """Rows for pages without an allocation, which belong to the kernel or were freed meanwhile."""
    first = np.flatnonzero(np.r_[True, np.diff(pages) != PAGE])
    start, end = pages[first], pages[np.append(first[1:], len(pages)) - 1] + np.uint64(PAGE)
    kernel = start >= np.uint64(processes.KERNEL_BASE)
    names = np.where(kernel, np.uint32(strings.code("[kernel]")), np.uint32(0)).astype("<u4")
    flags = (kernel * np.uint16(KIND_KERNEL << KIND_SHIFT)).astype("<u2")
    return {"start": start, "end": end, "offset": np.zeros(len(start), "<u8"), "file": names, "flags": flags}


def _merged(one: Columns, other: Columns) -> Columns:
    """The rows of both tables, ordered by start."""
    both = {name: np.concatenate((one[name], other[name])) for name in one}
    order = np.argsort(both["start"], kind="stable")
    return {name: column[order] for name, column in both.items()}
