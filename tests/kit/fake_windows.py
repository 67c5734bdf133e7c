"""A Windows in memory: the functions of `WindowsApi` with their documented contract, on every system.

A source is handed `FakeWindows()` in place of the module `wstrace_plugins.os.windows.api`; a script then
makes processes fault
(`process.fault(pc, va, tid)`) and knows in advance what a tracer must see. What it keeps of Microsoft's pages: one
buffer a process, its capacity, the count of lost records in the terminator (1 on XP), a concurrent query refused, a
buffer too small refused with the records kept, rights checked, handles counted.
"""

import ctypes
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kit.fake_windows_system import KILL_ON_JOB_CLOSE, FakeSystem, at, write_utf16
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.layouts import (
    MEMORY_BASIC_INFORMATION,
    PROCESS_MEMORY_COUNTERS,
    PSAPI_WORKING_SET_BLOCK,
    PSAPI_WORKING_SET_EX_INFORMATION,
    PSAPI_WS_WATCH_INFORMATION_EX,
)

PAGE = 4096
KERNEL_PC = 0xFFFF_F802_0000_1000
FIRST_FILTERED_BUILD = 26100
_lock = threading.RLock()  # a script makes faults while another thread takes them


@dataclass(slots=True)
class FakeAllocation:
    """Memory of a fake process; file is a device path, data what ReadProcessMemory gives."""

    start: int
    size: int
    type: int = winapi.MEM_PRIVATE
    protect: int = winapi.PAGE_READWRITE
    file: str = ""
    guard: bool = False
    reserved: int = 0  # the protection that it was made with, where that is another one
    data: bytes = b""
    state: int = winapi.MEM_COMMIT


@dataclass(slots=True)
class FakeProcess:
    """A process: what its kernel side would hold.

    records: (pc, va with bit 0, tid) not yet taken. working_set: page address -> low 12 bits of its block.
    stubborn: pages that stay when the working set is emptied.
    """

    pid: int
    parent: int = 0
    name: str = "app.exe"
    capacity: int = 1024
    denied: bool | str = False  # True, or "limited": only the limited right is given
    token_denied: bool = False
    elevated: bool = False
    user: str = "me"
    watched: bool = False
    busy: bool = False
    exited: bool = False
    exit_code: int = 0
    created: int = 100
    ended: int = 0
    lost: int = 0
    page_faults: int = 0
    records: list[tuple[int, int, int]] = field(default_factory=list)
    allocations: list[FakeAllocation] = field(default_factory=list)
    working_set: dict[int, int] = field(default_factory=dict)
    attributes: dict[int, int] = field(default_factory=dict)
    stubborn: frozenset[int] = frozenset()

    def fault(self, pc: int, va: int, tid: int = 1, *, hard: bool = False) -> None:
        """A page fault: recorded when watched and there is room, else lost; counted in any case."""
        with _lock:
            self.page_faults += 1
            if not self.watched:
                return
            if len(self.records) < self.capacity and not self.busy:
                self.records.append((pc, va & ~1 | (not hard), tid))
            else:
                self.lost += 1


class FakeWindows(FakeSystem):
    """The api of one fake machine.

    Args:
        stub: InitializeProcessForWsWatch returns TRUE and watches nothing, as under Wine.
    """

    def __init__(self, *, stub: bool = False) -> None:
        super().__init__()
        self.stub = stub
        self.processes = {}
        self.handles = {}
        self.opened = 0
        self.calls = []
        self.small_code = winapi.ERROR_BAD_LENGTH
        self._memory = {}

    def process(self, pid: int, **attributes: object) -> FakeProcess:
        """A new process."""
        process = self.processes[pid] = FakeProcess(pid, **attributes)
        return process

    # -- handles --------------------------------------------------------------------------------------------------

    def OpenProcess(self, rights: int, inherit: int, pid: int) -> int:
        """0 and 87 for no such process, 5 for one that is denied."""
        process = self.processes.get(pid) or self.processes.get(pid & ~3)  # the low two bits are ignored
        if process is None:
            return self._fail(winapi.ERROR_INVALID_PARAMETER)
        limited = not rights & ~(winapi.PROCESS_QUERY_LIMITED_INFORMATION | winapi.SYNCHRONIZE)
        if process.denied and not (limited and process.denied == "limited"):
            return self._fail(winapi.ERROR_ACCESS_DENIED)
        self.opened += 4
        self.handles[self.opened] = (process.pid, rights)
        return self.opened

    def GetProcessId(self, handle: int) -> int:
        """The number of the process behind a handle."""
        return self._held(handle)[0]

    def CloseHandle(self, handle: int) -> int:
        """0 and 6 for a handle that is not open: closing twice is seen."""
        job = self.jobs.get(handle)
        if job is not None and job.limits & KILL_ON_JOB_CLOSE:
            for pid in job.members & set(self.processes):
                self.processes[pid].exited = True
        if any(held.pop(handle, None) is not None for held in (self.handles, self._tokens)):
            return 1
        return self._fail(winapi.ERROR_INVALID_HANDLE)

    def GetCurrentProcess(self) -> int:
        """The pseudo handle -1, of process 1."""
        return -1

    def GetCurrentProcessId(self) -> int:
        """We are process 1."""
        return 1

    def WaitForSingleObject(self, handle: int, milliseconds: int) -> int:
        """0 when it has exited, else 258 (WAIT_TIMEOUT) at once."""
        process = self._of(handle, winapi.SYNCHRONIZE)
        return 0 if process is not None and process.exited else 258

    def WaitForMultipleObjects(self, count: int, handles: int, all_of_them: int, milliseconds: int) -> int:
        """The first one that has exited, else 258, at once; WAIT_FAILED for none, too many, one without rights."""
        assert (all_of_them, milliseconds) == (0, 0)
        found = [self._of(int(handle), winapi.SYNCHRONIZE) for handle in at(handles, "<u8", count)] if count else []
        if not 0 < count <= 64 or None in found:
            return 0xFFFFFFFF
        return next((n for n, process in enumerate(found) if process.exited), 258)

    def GetExitCodeProcess(self, handle: int, code: int) -> int:
        """259 (STILL_ACTIVE) while it runs."""
        process = self._of(handle, winapi.PROCESS_QUERY_INFORMATION)
        if process is not None:
            at(code, "<u4", 1)[0] = process.exit_code & 0xFFFFFFFF if process.exited else 259
        return int(process is not None)

    def GetProcessTimes(self, handle: int, created: int, ended: int, kernel: int, user: int) -> int:
        """When it was created; it used no CPU."""
        process = self._of(handle, winapi.PROCESS_QUERY_LIMITED_INFORMATION)
        if process is not None:
            at(created, "<u8", 1)[0] = process.created
            at(ended, "<u8", 1)[0] = process.ended if process.exited else 0
        return int(process is not None)

    def QueryFullProcessImageNameW(self, handle: int, flags: int, buffer: int, size: int) -> int:
        """The path of the executable; size is in characters, in and out."""
        process = self._of(handle, winapi.PROCESS_QUERY_LIMITED_INFORMATION)
        if process is not None:
            at(size, "<u4", 1)[0] = write_utf16(buffer, f"C:\\apps\\{process.name}", int(at(size, "<u4", 1)[0]))
        return int(process is not None)

    # -- the watch ------------------------------------------------------------------------------------------------

    def InitializeProcessForWsWatch(self, handle: int) -> int:
        """Starts the watch; initialising again flushes nothing."""
        process = self._of(handle, winapi.PROCESS_QUERY_INFORMATION | winapi.PROCESS_SET_INFORMATION)
        if process is not None and not self.stub:
            process.watched = True
        return int(process is not None)

    def GetWsChangesEx(self, handle: int, buffer: int, size: int) -> int:
        """The records with threads; size points to the bytes of the buffer and receives the bytes required."""
        with _lock:
            return self._answer(handle, buffer, at(size, "<u4", 1))

    def _answer(self, handle: int, buffer: int, size: Any) -> int:
        self.calls.append("GetWsChanges")
        if self.stub:
            return self._fail(winapi.ERROR_CALL_NOT_IMPLEMENTED)
        process = self._of(handle, winapi.PROCESS_QUERY_INFORMATION)
        if process is None:
            return 0
        layout = PSAPI_WS_WATCH_INFORMATION_EX
        if size[0] % layout.itemsize:
            return self._fail(winapi.ERROR_BAD_LENGTH)
        if not process.watched:
            return self._fail(winapi.ERROR_GEN_FAILURE)
        if process.busy or not (process.records or process.lost):
            return self._fail(winapi.ERROR_NO_MORE_ITEMS)
        room, size[0] = int(size[0]), (len(process.records) + 1) * layout.itemsize
        if room < size[0]:
            return self._fail(winapi.ERROR_INSUFFICIENT_BUFFER)
        # the sizes above are those of all records: what is left out is left out later, and not counted
        shown = process.records if not self._hides_kernel() else [r for r in process.records if max(r[:2]) < 1 << 63]
        rows = at(buffer, layout, len(shown) + 1)
        rows[:] = np.zeros(1, layout)
        for row, (pc, va, tid) in zip(rows, shown, strict=False):
            row["FaultingPc"], row["FaultingVa"] = pc, va
            row["FaultingThreadId"] = tid
        rows[-1]["FaultingVa"] = process.lost
        process.records, process.lost = [], 0
        return 1

    def _hides_kernel(self) -> bool:
        """Windows 11 24H2 and Server 2025: kernel addresses are for holders of SeDebugPrivilege only."""
        return self.build >= FIRST_FILTERED_BUILD and "SeDebugPrivilege" not in self.privileges

    def ReadProcessMemory(self, handle: int, address: int, buffer: int, size: int, read: int | None) -> int:
        """An allocation's data, 0 and 299 where it has none."""
        process = self._of(handle, winapi.PROCESS_VM_READ)
        if process is None:
            return 0
        for a in process.allocations:
            if a.start <= address and address + size <= a.start + len(a.data):
                ctypes.memmove(buffer, a.data[address - a.start : address - a.start + size], size)
                return 1
        return self._fail(winapi.ERROR_PARTIAL_COPY)

    # -- the working set ------------------------------------------------------------------------------------------

    def QueryWorkingSet(self, handle: int, buffer: int, size: int) -> int:
        """24 (998 has been seen too) and the number of entries when the buffer is too small."""
        self.calls.append("QueryWorkingSet")
        process = self._of(handle, winapi.QUERY_RIGHTS)
        if process is None:
            return 0
        layout = PSAPI_WORKING_SET_BLOCK
        at(buffer, layout, 1)[0] = len(process.working_set)
        if size < (len(process.working_set) + 1) * layout.itemsize:
            return self._fail(self.small_code)
        blocks = [address | bits for address, bits in process.working_set.items()]
        at(buffer, layout, len(blocks) + 1)[1:] = blocks
        return 1

    def QueryWorkingSetEx(self, handle: int, buffer: int, size: int) -> int:
        """The attributes of the addresses in the buffer; 0 for a page that is not there."""
        process = self._of(handle, winapi.QUERY_RIGHTS)
        if process is None:
            return 0
        layout = PSAPI_WORKING_SET_EX_INFORMATION
        for row in at(buffer, layout, size // layout.itemsize):
            row["VirtualAttributes"] = process.attributes.get(int(row["VirtualAddress"]) // PAGE * PAGE, 0)
        return 1

    def EmptyWorkingSet(self, handle: int) -> int:
        """Takes out what is not stubborn."""
        process = self._of(handle, winapi.PROCESS_SET_QUOTA)
        if process is not None:
            process.working_set = {a: bits for a, bits in process.working_set.items() if a in process.stubborn}
        return int(process is not None)

    def GetProcessMemoryInfo(self, handle: int, buffer: int, size: int) -> int:
        """Counts; they stay after the exit while a handle is open."""
        process = self._of(handle, winapi.PROCESS_QUERY_LIMITED_INFORMATION)
        if process is None:
            return 0
        counters = at(buffer, PROCESS_MEMORY_COUNTERS, 1)[0]
        counters["PageFaultCount"] = process.page_faults & 0xFFFFFFFF
        counters["WorkingSetSize"] = counters["PeakWorkingSetSize"] = len(process.working_set) * PAGE
        return 1

    # -- memory ---------------------------------------------------------------------------------------------------

    def VirtualQueryEx(self, handle: int, address: int, buffer: int, size: int) -> int:
        """The region around an address; 0 after the exit."""
        process = self._of(handle, winapi.PROCESS_QUERY_INFORMATION)
        limit = 0x7FFF_FFFF_0000
        if process is None or process.exited or address >= limit:
            return self._fail(winapi.ERROR_INVALID_PARAMETER)
        region = at(buffer, MEMORY_BASIC_INFORMATION, 1)
        for a in sorted(process.allocations, key=lambda a: a.start):
            if a.start <= address < a.start + a.size:
                protect = a.protect | (winapi.PAGE_GUARD if a.guard else 0)
                region[0] = (a.start, a.start, a.reserved or a.protect, a.size, a.state, protect, a.type)
                return size
            if address < a.start:
                limit = a.start
                break
        region[0] = (address // PAGE * PAGE, 0, 0, limit - address // PAGE * PAGE, winapi.MEM_FREE, 1, 0)
        return size

    def GetMappedFileNameW(self, handle: int, address: int, buffer: int, chars: int) -> int:
        """The device path of the file mapped there, 0 for private memory."""
        process = self._of(handle, winapi.QUERY_RIGHTS)
        for a in process.allocations if process is not None and not process.exited else ():
            if a.start <= address < a.start + a.size and a.file:
                return write_utf16(buffer, a.file, chars)
        return self._fail(winapi.ERROR_INVALID_PARAMETER)

    def VirtualAlloc(self, address: int | None, size: int, kinds: int, protect: int) -> int:
        """Memory of the calling process, real; with MEM_WRITE_WATCH its writes are tracked."""
        memory = ctypes.create_string_buffer(size + PAGE)
        start = -(-ctypes.addressof(memory) // PAGE) * PAGE
        self._memory[start] = (memory, bytearray(size) if kinds & winapi.MEM_WRITE_WATCH else None)
        return start

    def VirtualFree(self, start: int, size: int, kind: int) -> int:
        """Frees a whole allocation."""
        return int(self._memory.pop(start, None) is not None)

    def GetWriteWatch(self, flags: int, start: int, size: int, addresses: int, count: int, granularity: int) -> int:
        """0, or nonzero and 87 outside of MEM_WRITE_WATCH memory. A page whose content changed was written."""
        base = next((b for b, (_, seen) in self._memory.items() if seen is not None and b <= start < b + len(seen)), 0)
        _, shadow = self._memory.get(base, (None, None))
        if shadow is None or start + size > base + len(shadow):
            self._fail(winapi.ERROR_INVALID_PARAMETER)
            return 0xFFFFFFFF
        counter = at(count, "<u8", 1)
        written = []
        for page in range(start // PAGE * PAGE, start + size, PAGE):
            now, before = ctypes.string_at(page, PAGE), slice(page - base, page - base + PAGE)
            if now != shadow[before] and len(written) < int(counter[0]):
                written.append(page)
                if flags & winapi.WRITE_WATCH_FLAG_RESET:  # the pages not returned stay set
                    shadow[before] = now
        at(addresses, "<u8", len(written) or 1)[: len(written)] = written
        counter[0], at(granularity, "<u4", 1)[0] = len(written), PAGE
        return 0

    # -- plumbing -------------------------------------------------------------------------------------------------

    def _of(self, handle: int, rights: int) -> FakeProcess | None:
        pid, granted = self._held(handle)
        if not pid:
            self._fail(winapi.ERROR_INVALID_HANDLE)
            return None
        if granted & winapi.PROCESS_QUERY_INFORMATION:  # it includes the limited right
            granted |= winapi.PROCESS_QUERY_LIMITED_INFORMATION
        if granted & rights != rights:
            self._fail(winapi.ERROR_ACCESS_DENIED)
            return None
        return self.processes.get(pid)
