"""The working-set watch of one process: InitializeProcessForWsWatch and GetWsChangesEx.

The kernel keeps one buffer of 1,024 records a process (observed on Windows 10 and 11). Reading empties it, whoever
reads: two tracers of one process see a part each. A full buffer records nothing more, and says how many it lost in its
terminator. The watch stays on until the process exits; nothing turns it off.
Source: Microsoft Learn, psapi.h: InitializeProcessForWsWatch, GetWsChanges, GetWsChangesEx.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import Unavailable
from wstrace_os.windows import api as winapi
from wstrace_os.windows import process as processes
from wstrace_os.windows import token
from wstrace_os.windows.interface import WindowsApi
from wstrace_os.windows.layouts import (
    PSAPI_WS_WATCH_INFORMATION,
    PSAPI_WS_WATCH_INFORMATION_EX,
)
from wstrace_page_faults.windows.records import Changes, decode

KERNEL_RECORDS = 1024
#: what a system answers that has no GetWsChangesEx: then GetWsChanges is asked, which tells no threads
_NOT_THERE = (winapi.ERROR_INVALID_FUNCTION, winapi.ERROR_INVALID_PARAMETER, winapi.ERROR_CALL_NOT_IMPLEMENTED)
_MAX_RECORDS = 1 << 20  # 32 MiB: more than any kernel keeps

#: (machine, pid) of every watch of this process
_watched: set[tuple[int, int]] = set()
_lock = threading.Lock()


class Watch:
    """A process's page faults since the last drain. Made for one thread; close() ends it.

    Args:
        api: wstrace_os.windows.api or a stand-in.
        pid: the process.
        xp: see decode().

    Raises:
        TargetExited: no such process.
        Unavailable: access refused, a second watch of this pid, a 32-bit tracer of a 64-bit process, or a system whose
            watch calls do nothing.
    """

    def __init__(self, api: WindowsApi, pid: int, *, xp: bool = False) -> None:
        self._api, self.pid, self._xp = api, pid, xp
        self._pointer = api.POINTER
        self._kernel_base = 0 if api.POINTER == 8 else processes.kernel_base(api)
        self._size = np.zeros(1, "<u4")
        self._extended = True
        self._allocate(KERNEL_RECORDS + 1)
        self.recorded = self.lost = 0
        self.lost_is_exact = True
        #: True when the watch was on before: another tracer, or an earlier session on this process
        self.shared = False
        _claim(api, pid)
        try:
            self.handle = winapi.open_process(api, pid, winapi.WATCH_RIGHTS)
            try:
                processes.refuse_other_width(api, self.handle, pid)
                self._enable()
            except BaseException:
                api.CloseHandle(self.handle)
                raise
        except BaseException:
            _release(api, pid)
            raise

    def _enable(self) -> None:
        self._pending: Changes | None = None
        self._earlier = 0
        self._first_look()
        self.before = self._seen = self._count()
        if not self._api.InitializeProcessForWsWatch(self.handle):
            raise winapi.failed("InitializeProcessForWsWatch", self._api.GetLastError(), f"of pid {self.pid}")
        code = self._query()  # it may return TRUE although nothing was enabled (observed)
        if code not in (0, winapi.ERROR_NO_MORE_ITEMS):
            raise Unavailable(
                f"InitializeProcessForWsWatch succeeded but nothing is watched: GetWsChanges fails with {code} "
                f"({winapi.meaning(code)}); it is a stub here{', as under Wine' if processes.wine_version() else ''}",
                "record on Windows itself, with a 64-bit Python; report, replay and convert work here",
            )
        if code == 0:
            self._pending = self._take()

    def _first_look(self) -> None:
        """GetWsChangesEx came with Vista, and WOW64 may not pass it on; and is somebody watching already?"""
        try:
            code = self._query()
        except Unavailable:
            code = winapi.ERROR_CALL_NOT_IMPLEMENTED
        if code in _NOT_THERE:
            self._extended = False
            self._allocate(KERNEL_RECORDS + 1)
            code = self._query()
        self.shared = code in (0, winapi.ERROR_NO_MORE_ITEMS)
        if code == 0:
            earlier = self._take()
            self._earlier = len(earlier) + earlier.lost
        if code == winapi.ERROR_ACCESS_DENIED and token.low_integrity(self._api):
            raise Unavailable(
                "this process runs with low integrity (a sandbox, AppContainer): Windows tells it no page faults",
                "run wstrace from an ordinary terminal",
            )
        if code in (winapi.ERROR_ACCESS_DENIED, winapi.ERROR_INVALID_HANDLE):
            raise winapi.failed("GetWsChanges", code, f"of pid {self.pid}")

    def discard(self) -> int:
        """Drops what was recorded up to now, as the article's Start Delta does; how many records that were."""
        dropped = self.drain()
        self.recorded = self.lost = 0
        self.before = self._count()
        return self._earlier + len(dropped) + dropped.lost

    def drain(self) -> Changes:
        """The records since the last time, in the order in which the kernel made them; none is no error.

        Raises:
            Unavailable: the query failed.
        """
        changes = self._pending
        if changes is None:
            code = self._query()
            if code in (winapi.ERROR_NO_MORE_ITEMS, winapi.ERROR_NOACCESS):  # 998 comes rarely and passes (observed)
                return self.nothing
            if code:
                raise winapi.failed("GetWsChangesEx" if self._extended else "GetWsChanges", code, f"of pid {self.pid}")
            changes = self._take()
        self._pending = None
        self.recorded += len(changes)
        self.lost += changes.lost
        self.lost_is_exact &= changes.lost_is_exact
        return changes

    def _take(self) -> Changes:
        changes = decode(self._buffer, kernel_base=self._kernel_base, xp=self._xp)
        self._buffer["FaultingPc"][-1] = 0  # the next answer ends here at the latest
        return changes

    def _query(self) -> int:
        """0 when the buffer was filled, else the error code. Grows the buffer until the records fit."""
        api = self._api
        while True:
            if self._extended:
                self._size[0] = self._bytes  # in and out: it must be set before each call
                done = api.GetWsChangesEx(self.handle, self._address, self._size_address)
            else:
                done = api.GetWsChanges(self.handle, self._address, self._bytes)
            if done:
                return 0
            code: int = api.GetLastError()
            if code != winapi.ERROR_INSUFFICIENT_BUFFER or len(self._buffer) >= _MAX_RECORDS:
                return code
            required = int(self._size[0]) // self._buffer.itemsize + 1 if self._extended else 0
            self._allocate(min(max(required, 2 * len(self._buffer)), _MAX_RECORDS))

    def _allocate(self, records: int) -> None:
        layouts = PSAPI_WS_WATCH_INFORMATION_EX if self._extended else PSAPI_WS_WATCH_INFORMATION
        self._buffer: NDArray[np.void] = np.zeros(records, layouts[self._pointer])
        self.nothing = decode(self._buffer[:0])
        # as they go into a call that finds nothing a thousand times a second
        self._bytes, self._address = self._buffer.nbytes, self._buffer.ctypes.data
        self._size_address = self._size.ctypes.data

    def _count(self) -> int:
        counters = processes.counters(self._api, self.handle)
        return counters.page_faults if counters is not None else 0

    def counted(self) -> int | None:
        """Faults that the kernel's own counter (32 bits) saw since the watch began; None where it does not count."""
        now = self._count()
        return (now - self.before) & 0xFFFF_FFFF if now else None

    def grown(self) -> int:
        """Faults that the kernel's own counter saw since the last call, recorded or not."""
        before, self._seen = self._seen, self._count()
        return (self._seen - before) & 0xFFFF_FFFF if self._seen else 0

    @property
    def place(self) -> int:
        """The address of its buffer: memory of the calling process."""
        return self._address

    def exited(self) -> bool:
        """True once the process has ended; its last records can still be read."""
        return processes.exited(self._api, self.handle)

    def close(self) -> None:
        """Closes the handle. The kernel goes on recording into its buffer until the process exits."""
        self._api.CloseHandle(self.handle)
        _release(self._api, self.pid)


def _claim(api: WindowsApi, pid: int) -> None:
    with _lock:
        if (id(api), pid) in _watched:
            raise Unavailable(
                f"pid {pid} is already traced by a session of this process, and the kernel keeps one buffer a process",
                "stop the other session, or add exporters to it",
            )
        _watched.add((id(api), pid))


def _release(api: WindowsApi, pid: int) -> None:
    with _lock:
        _watched.discard((id(api), pid))
