"""What the programs in the kernel and the tracer share: statuses, records, rows, the scratch memory's places, maps."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wstrace.schema import HOW_LOST, HOW_NO_PYTHON, HOW_NOT_KNOWN, HOW_NOT_READABLE
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.python_stacks import bpf

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: instead of a walker: the process runs no CPython; the tracer has still to say which one it runs
NONE, PENDING = 0x7FFFFFFE, 0x7FFFFFFF
#: instead of the number of a process's exec and its begin
ANY_LIFE = bytes(16)
#: the outermost frames of a deeper stack are left out
DEPTH = 128

#: The status of a walk stands in the low bits of a stack's hash. A hash below 1 << STATUS_BITS is a status alone.
STATUS_BITS = 4
#: read as a whole; the outermost frames are missing, because the stack is deep or one of them could not be read
OK, TRUNCATED, BAD = 0, 1, 2
#: without frames: which CPython the process runs is not known, and it has executed nothing of one that is; no state
#: of a thread was found; none of its frames could be read (BAD); it runs no Python
NOT_KNOWN, NO_THREAD, EMPTY = 3, 4, 5
#: for the tracer's own use: the row was lost; no row was ever written
LOST, NO_ROW = 6, 7
#: without frames: no interpreter was made yet, so that there was never a frame of any thread
UNBORN = 8
#: without frames: where the first interpreter would be is not in memory, as before anything is written there
UNTOUCHED = 9
#: what a status without frames says of a fault
HOW_OF_STATUS = {
    BAD: HOW_NOT_READABLE,
    TRUNCATED: HOW_NOT_READABLE,
    NO_THREAD: HOW_NOT_READABLE,
    EMPTY: HOW_NO_PYTHON,
    LOST: HOW_LOST,
    NOT_KNOWN: HOW_NOT_KNOWN,
    UNBORN: HOW_NO_PYTHON,
    UNTOUCHED: HOW_NOT_READABLE,
    NO_ROW: HOW_NOT_KNOWN,
}

#: A row, as long as the sample that follows it: header, pid and tid, time, {size of the raw data, MAGIC}, hash. In a
#: sample the fourth u64 is the time, which would be in 199 years. The raw data begin with MAGIC, behind 28 bytes.
MAGIC = 0x57535452
RAW_BYTES = perf.SAMPLE.itemsize + 8 * len(perf.SAMPLE_FIELDS) - 28

#: a record of the ring buffer begins with its kind, in the low byte of a u32
RECORD_STACK, RECORD_CODE = 1, 2
#: a stack: u32 kind, u32 tgid, u64 hash, u64 number of frames; then the frames, innermost first: u64 id of the code
#: object, u64 offset of the instruction in it and flags, u64 its address, 0 where a frame before it has the same one
HEAD, FRAME = 24, 24
#: a code object: u32 kind | where its instructions begin << 8, u32 tgid, u64 id, u32 first line, u32 bytes of the line
#: table, {u32 state, u32 length} of its qualified name and of its file's name; then room for both names, and the table
CODE_HEAD, NAME_ROOM, FILE_ROOM, LINES_ROOM = 40, 256, 512, 24 << 10


#: a flag of a frame, in its offset: its code object has no number, and was identified by what it points to
UNCHECKED = 1 << 32
#: Bytes that are read at once of a frame's page and what of the frame stands behind it: a read costs 80 ns, whether
#: of 8 bytes or of 512, and 108 ns of 4,096.
FRAME_WINDOW = 4096 + 128
#: The table of code objects, by a hash of the address: {address, number of the last walk that met it, id, the epoch in
#: which that holds, or the process's salt if it always does, flags}.
SLOT, SLOT_BITS = 40, 8
#: bytes of a line table or a name that are hashed
BLOCK_ROOM = 512


class S:
    """Places in a CPU's scratch memory, in bytes."""

    KIND = 0  # 0 minor, 1 major
    IDS = 8  # tid, tgid
    LAST = 16  # of minor and of major rows: hash and tid of the last one, 0 = none
    PROCESS = 48  # salt, address of _PyRuntime
    WALKER = 64  # its index
    THREAD_POINTER = 72
    HASH = 80
    SALT = 88
    STATUS = 96
    # counts; ROWS_LOST of minor and of major ones
    ROWS_LOST = 104
    # of a search
    INTERPRETER = 144
    NEXT = 152
    CURSOR = 160
    UNIQUE = 168
    FOUND = 176
    NEWBORN = 184  # a state without a frame was met: it may be of a thread that is about to start
    ENDED = 192
    # of a walk; NEXT is the next frame
    FRAMES = 208
    CODE = 216
    OFFSET = 224
    ID = 232
    STRINGS = 256  # addresses of the qualified name and of the file's name
    AT = 272
    LEFT = 280
    SIZE = 288  # of the line table, while a code object is reported
    # of the frame before in this walk: the file's name that was hashed last, and its hash
    FILE = 320
    FILE_HASH = 328
    WORDS = 336  # what was read last, up to 112 bytes
    WALK = 448  # its number on this CPU
    EPOCH = 456  # the same until a code object is freed; where that is not known, the walk's number
    BEGAN = 464  # when the process at hand began: no other with its tgid did so then
    # of the process that was known last on this CPU, which PROCESS is of: tgid, 0 = none, exec, begin
    KNOWN = 472
    SEEN = 528  # the stack that this CPU saw last
    # of both windows of this walk: the address of a frame that would begin with the window's first byte, and how far
    # behind it the last frame stands that was read as a whole
    WINDOW_AT = 536
    LIMIT = 552
    NEAR = 568  # Python's last frame: callers stand before it
    WINDOW = 576  # a page's frames that were read at once
    MAPPED = WORDS  # of the mapping that is executed: whether its file is known, where it begins, its page in the file
    FILE_KEY = WORDS + 24  # what the maps know a file by, 24 bytes
    RECORD = WINDOW + 2 * FRAME_WINDOW  # HEAD and the frames
    SLOTS = RECORD + HEAD + FRAME * (DEPTH + 1)
    BLOCK = SLOTS + (SLOT << SLOT_BITS) + 64  # content that is being hashed; its head was read with it
    BYTES = BLOCK + BLOCK_ROOM + 32  # a CPU's value has 32 KiB at most


_HEADER, _ROW_IDS, _SAMPLE_IDS, _MARK, _HASH = 0, 1, 2, 3, 4
_TID = np.uint64(32)  # the thread, or the magic number, is the upper half
_TYPE = np.uint64(0xFFFFFFFF)


class StackRows:
    """The pairing of one ring, by position: a sample has the stack of the last row before it, if that is its thread's.

    A row stands directly before its sample. Where a thread's next stack is the same, there is no further row. After a
    loss nothing is known until the next row: the program tells anew when a row of its own was lost.
    """

    def __init__(self) -> None:
        self._tid, self._hash = np.uint64(0), np.uint64(NO_ROW)

    @property
    def same(self) -> int | None:
        """The hash of all samples up to the next stack row or loss, of any thread; None = it differs by thread."""
        return int(self._hash) if self._hash in (NO_ROW, LOST) else None

    def pair(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows without the stack rows, and the hash of each one's stack as a further, last column.

        rows: u64, shape (n, k), in the order of the ring; rows of other records than samples are kept. Returns u64,
        shape (m, k + 1). The hash is a status alone (protocol.LOST, NO_ROW) where nothing is known.
        """
        lost = (rows[:, _HEADER] & _TYPE) == perf.PERF_RECORD_LOST
        stacks = (rows[:, _MARK] >> _TID == MAGIC) & ~lost
        marked = stacks | lost
        marks = np.flatnonzero(marked)
        # of each row: the mark before it, and its thread; entry 0 is the last one of the call before
        tids = np.append(self._tid, np.where(lost[marks], np.uint64(0), rows[marks, _ROW_IDS] >> _TID))
        hashes = np.append(self._hash, np.where(lost[marks], np.uint64(LOST), rows[marks, _HASH]))
        self._tid, self._hash = tids[-1], hashes[-1]
        kept = ~stacks
        before, rows = np.cumsum(marked)[kept], rows[kept]
        out = np.empty((len(rows), rows.shape[1] + 1), "<u8", order="F")
        out[:, :-1] = rows
        mine = tids[before] == rows[:, _SAMPLE_IDS] >> _TID
        unknown = np.where(hashes == LOST, np.uint64(LOST), np.uint64(NO_ROW))
        out[:, -1] = np.where(mine, hashes[before], unknown[before])
        return out


_PROCESSES, _THREADS, _KNOWN, _FILES = 8192, 16384, 1 << 15, 256
#: bytes of the ring buffer for new stacks and code objects
RING_BYTES = 4 << 20
WALKERS = 32
_PENDING_BYTES = 4096


class Kernel(NamedTuple):
    """Offsets of members in bytes, in task_struct, vm_area_struct, file and inode; our pid namespace.

    namespace: its device and inode, None = the first.
    """

    namespace: tuple[int, int] | None
    self_exec_id: int
    real_parent: int
    tgid: int
    leader: int
    began: int
    thread_pointer: int
    mapping_page: int
    mapping_file: int
    file_inode: int
    inode_size: int
    inode_seconds: int
    inode_nanoseconds: int


class Maps:
    """The maps of a trace.

    scratch: a CPU's memory (protocol.S). reported: pid -> what the tracer knows of its CPython: u64 salt, u64 address
    of _PyRuntime, u64 walker, u64 exec and u64 begin that it holds for, 0 = any. files: u64 bytes, u64 seconds and u64
    nanoseconds of the time of change of a file with a CPython (overlayfs gives the same of the file below) -> u64
    _PyRuntime from where the file's begin is mapped, as its code tells that; u64 walker. processes: tgid -> as
    reported, and of which exec and begin. outputs: where rows go, by CPU and kind. pending: pid and exec of processes
    that the tracer is to look at. walkers: a program for each CPython. multiplier: of the hashes, secret to the traced
    programs. The maps that walkers alone need are made when one is loaded: a command without a CPython does not pay
    their 6 ms. groups: samples have their cgroup, too. raw_bytes: of a row, which is as long as a sample.
    Raises OSError: the kernel refuses a map.
    """

    def __init__(self, cpus: int, *, groups: bool) -> None:
        self.raw_bytes = RAW_BYTES + 8 * groups
        self.multiplier = int.from_bytes(os.urandom(8), "little") | 1
        self._all: list[bpf.Map] = []
        try:
            self.scratch = self._map(bpf.PER_CPU_ARRAY, 4, S.BYTES, 1, b"scratch")
            self.reported = self._map(bpf.LRU_HASH, 8, 40, _PROCESSES, b"known")
            self.files = self._map(bpf.LRU_HASH, 24, 16, _FILES, b"files")
            self.processes = self._map(bpf.LRU_HASH, 8, 40, _PROCESSES, b"procs")
            self.outputs = self._map(bpf.PERF_EVENT_ARRAY, 4, 4, 2 * cpus, b"rows")
            self.pending = self._map(bpf.RING_BUFFER, 0, 0, _PENDING_BYTES, b"pending")
            self.walkers = self._map(bpf.PROGRAM_ARRAY, 4, 4, WALKERS, b"walkers")
        except OSError:
            self.close()
            raise

    @functools.cached_property
    def threads(self) -> bpf.Map:
        """tid and tgid -> the thread's state, and what tells whether that still holds."""
        return self._map(bpf.LRU_HASH, 8, 32, _THREADS, b"threads")

    @functools.cached_property
    def seen(self) -> bpf.Map:
        """Hashes of stacks that the tracer has."""
        return self._map(bpf.LRU_HASH, 8, 8, _KNOWN, b"seen")

    @functools.cached_property
    def codes(self) -> bpf.Map:
        """Ids of code objects that the tracer has."""
        return self._map(bpf.LRU_HASH, 8, 8, _KNOWN, b"codes")

    @functools.cached_property
    def code(self) -> bpf.Map:
        """Room for a code object."""
        return self._map(bpf.PER_CPU_ARRAY, 4, CODE_HEAD + NAME_ROOM + FILE_ROOM + LINES_ROOM, 1, b"code")

    @functools.cached_property
    def records(self) -> bpf.Map:
        """The ring buffer of what walkers tell."""
        return self._map(bpf.RING_BUFFER, 0, 0, RING_BYTES, b"records")

    def _map(self, kind: int, key: int, value: int, entries: int, name: bytes) -> bpf.Map:
        made = bpf.Map(kind, key, value, entries, name)
        self._all.append(made)
        return made

    def close(self) -> None:
        """Closes all descriptors."""
        for one in self._all:
            one.close()
