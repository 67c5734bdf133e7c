"""Watch: the working-set watch of one process, by InitializeProcessForWsWatch and GetWsChangesEx.

The kernel keeps one buffer of 1,024 records per process (observed on Windows 10 and 11). Reading empties it, so two
tracers of one process each get a part of the records. A full buffer records nothing more, and its terminator counts
what was lost. The watch stays on until the process exits; nothing turns it off.
Source: Microsoft Learn, psapi.h: InitializeProcessForWsWatch, GetWsChangesEx (Windows Vista).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.batch import Columns, Dictionary
from wstrace.errors import Unavailable
from wstrace.interfaces import Level
from wstrace.schema import DTYPES, FAULT_MAJOR, FAULT_PC_KERNEL, PROCESS
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows import token
from wstrace_plugins.os.windows.layouts import PSAPI_WS_WATCH_INFORMATION_EX
from wstrace_plugins.os.windows.memory import AddressSpace, Memory

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Changes(NamedTuple):
    """The records of one buffer.

    columns: pc and va (u64), flags (u8) and tid (u32), each of shape (n,). lost: the number of records that were lost
    after these.
    """

    columns: Columns
    lost: int

    def __len__(self) -> int:
        return len(self.columns["va"])


def decode(records: NDArray[np.void]) -> Changes:
    """Decodes the records of a buffer up to its terminator, or up to its end when it has none.

    FaultingVa is the byte address, except that bit 0 is 1 for a soft (minor) and 0 for a hard (major) fault, as
    Microsoft's pfmon reads it. The columns are copies, so the buffer may be used again.
    records: PSAPI_WS_WATCH_INFORMATION_EX, shape (n,).
    """
    pc = records["FaultingPc"].astype("<u8")
    end = int((pc == 0).argmax()) if len(pc) else 0
    terminated = len(pc) > 0 and not pc[end]
    if not terminated:
        end = len(pc)
    pc = pc[:end]
    va = records["FaultingVa"][:end].astype("<u8")
    flags = (va.view("|u1")[::8] & 1) ^ 1
    flags |= (pc.view("|u1")[7::8] >> 7) << 1  # the kernel has the upper half, which the top bit shows
    va &= np.uint64(0xFFFF_FFFF_FFFF_FFFE)
    columns = {"pc": pc, "va": va, "flags": flags, "tid": records["FaultingThreadId"][:end].astype("<u4")}
    lost = int(records["FaultingVa"][end]) if terminated else 0
    return Changes(columns, lost)


# decode() uses bit 0 of FaultingVa, inverted, and the top bit of FaultingPc as these flags.
assert (FAULT_MAJOR, FAULT_PC_KERNEL) == (1, 2)

KERNEL_RECORDS = 1024
_MAX_RECORDS = 1 << 20  # 32 MiB, more than any kernel keeps


class Watch:
    """Watches the page faults of one process; for one thread. close() gives the handle back.

    The constructor only begins the watch, because earlier faults are missed; describe() queries the name and memory.
    api: wstrace_plugins.os.windows.api or a stand-in. parent: the pid of its parent, 0 for a target; None = ask the
    system. launched: whether it is a launched target. Raises TargetExited: there is no such process; Unavailable:
    access is refused, or the watch is a stub.
    """

    def __init__(self, api: WindowsApi, pid: int, parent: int | None = 0, *, launched: bool = False) -> None:
        self._api, self.pid, self.launched = api, pid, launched
        self.name = 0
        self.older = False  # whether it was there before the trace
        self.major = 0  # the number of recorded major faults
        self.space: AddressSpace | None = None
        self._size = np.zeros(1, "<u4")
        self._allocate(KERNEL_RECORDS + 1)
        self.recorded = self.lost = 0
        self._settled: int | None = None
        self.handle = winapi.open_process(api, pid, winapi.WATCH_RIGHTS)
        try:
            self._enable()
            self.created = processes.times(api, self.handle)[0]
            self.parent = processes.parent(api, self.handle) if parent is None else parent
        except BaseException:
            api.CloseHandle(self.handle)
            raise

    def describe(self, strings: Dictionary) -> AddressSpace:
        """The memory of the process; the first call queries its name and memory."""
        if self.space is None:
            self.name = strings.code(processes.name(self._api, self.handle, self.pid))
            self.space = AddressSpace(Memory(self._api, self.handle), self.pid, strings)
        return self.space

    def rows(self, now: int, *events: int, code: int = -1) -> Columns:
        """A row of the stream `process` for each event, at the time `now` in ns."""
        who = {"pid": self.pid, "ppid": self.parent, "tid": self.pid, "name": self.name}
        values: dict[str, Any] = {**who, "time_ns": now, "code": code, "event": events}
        return {one.name: np.full(len(events), values[one.name], DTYPES[one.type]) for one in PROCESS.columns}

    def _enable(self) -> None:
        self.before = self._seen = self._count()
        if not self._api.InitializeProcessForWsWatch(self.handle):
            raise winapi.failed("InitializeProcessForWsWatch", self._api.GetLastError(), f"of pid {self.pid}")
        code = self._query()  # InitializeProcessForWsWatch may return TRUE without enabling the watch (observed)
        if code not in (0, winapi.ERROR_NO_MORE_ITEMS):
            why, remedy = (
                ("it is a stub here, as under Wine", "record on Windows itself; report, replay and convert work here")
                if processes.wine_version()
                else ("it was refused", winapi.STRIPPED)
            )
            raise Unavailable(
                f"InitializeProcessForWsWatch succeeded but nothing is watched: GetWsChangesEx fails with {code} "
                f"({winapi.meaning(code)}); {why}",
                remedy,
            )
        self._pending = decode(self._buffer) if code == 0 else None

    def discard(self) -> int:
        """Drops all records so far, like Start Delta in the article of 1996; returns how many were made."""
        dropped = self.drain()
        self.recorded = self.lost = 0
        self.before = self._count()
        return len(dropped) + dropped.lost

    def drain(self) -> Changes:
        """The records since the last call, in the kernel's order; possibly none.

        Raises Unavailable: the query failed.
        """
        changes = self._pending
        if changes is None:
            code = self._query()
            if code in (winapi.ERROR_NO_MORE_ITEMS, winapi.ERROR_NOACCESS):  # 998 is rare and transient (observed)
                return self.nothing
            if code:
                raise winapi.failed("GetWsChangesEx", code, f"of pid {self.pid}")
            changes = decode(self._buffer)
        self._pending = None
        self.recorded += len(changes)
        self.lost += changes.lost
        return changes

    def _query(self) -> int:
        """Fills the buffer, which grows until the records fit; returns 0 or the error code."""
        api = self._api
        while True:
            self._size[0] = self._bytes  # in and out, so it must be set before each call
            done = api.GetWsChangesEx(self.handle, self._address, self._size_address)
            if done:
                return 0
            code: int = api.GetLastError()
            if code != winapi.ERROR_INSUFFICIENT_BUFFER or len(self._buffer) >= _MAX_RECORDS:
                return code
            required = int(self._size[0]) // self._buffer.itemsize + 1
            self._allocate(min(max(required, 2 * len(self._buffer)), _MAX_RECORDS))

    def _allocate(self, records: int) -> None:
        self._buffer: NDArray[np.void] = np.zeros(records, PSAPI_WS_WATCH_INFORMATION_EX)
        self.nothing = decode(self._buffer[:0])
        # kept as plain integers, because drains may call a thousand times a second
        self._bytes, self._address = self._buffer.nbytes, self._buffer.ctypes.data
        self._size_address = self._size.ctypes.data

    def _count(self) -> int:
        counters = processes.counters(self._api, self.handle)
        return counters.page_faults if counters is not None else 0

    def counted(self) -> int | None:
        """Faults since the watch began by the kernel's own counter (32 bits); None when it does not count."""
        now = self._count() if self._settled is None else self._settled
        return (now - self.before) & 0xFFFF_FFFF if now else None

    def settle(self) -> None:
        """Called after the last drain: faults from now on do not count, as a process that goes on makes more."""
        self._settled = self._count()

    def grown(self) -> int:
        """Faults since the last call by the kernel's own counter, recorded or not."""
        before, self._seen = self._seen, self._count()
        return (self._seen - before) & 0xFFFF_FFFF if self._seen else 0

    def exited(self) -> bool:
        """Whether the process has ended; its last records can still be read."""
        return processes.exited(self._api, self.handle)

    def close(self) -> None:
        """Closes the handle. The kernel still records into its buffer until the process exits."""
        self._api.CloseHandle(self.handle)


#: Windows 11 24H2, Server 2025: from it on, faults taken by kernel code are left out without SeDebugPrivilege
FIRST_FILTERED_BUILD = 26100


def level_of(api: WindowsApi) -> Level:
    """The level, `full` or `user`, by the build of Windows and our privilege."""
    if processes.build(api) < FIRST_FILTERED_BUILD or token.has_debug_privilege(api):
        return Level("full")
    return Level(
        "user",
        "this Windows (24H2 or later) leaves out faults taken by kernel code unless SeDebugPrivilege is on",
        "run wstrace in an elevated terminal (Run as administrator) with --debug-privilege",
    )
