"""The record model: every stream, its columns, their widths, meaning and unit. One place, no operating system.

A column that a system cannot fill is absent from its batches, never zero. Stream and column names are those of the
trace file (WSTF v1); a name is never reused with another meaning. This module imports nothing, so that reading a
schema costs nothing.
"""

from __future__ import annotations

from typing import NamedTuple

#: column type -> numpy dtype string, little-endian on every machine
DTYPES = {"u8": "|u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i64": "<i8"}


#: what the numbers of a column mean
SEMANTICS = {
    "ns": "time in ns on the monotonic clock",
    "addr": "an address",
    "bits": "flags",
    "id": "a number that the system gave: a pid, an inode, an index into a list of words",
    "count": "an amount",
    "str": "the code of a name in the session's Dictionary",
    "map": "the id of a row of `mapping`",
    "stack": "the id of a row of `call_site`: the innermost frame of a stack",
}
#: Semantics whose numbers are ids that each session, part of a file and merged file assigns itself: u32, 0 = unknown.
#: Semantic -> the stream whose rows they name, and whose own id is the column of that semantic; "" = the Dictionary.
#: Whoever moves records between two of those recodes by this table, so another id space is one more entry here.
ID_SPACES = {"str": "", "map": "mapping", "stack": "call_site"}
#: Those of the streams that are such tables whose rows are given as those of any stream are: table -> semantic.
TABLES = {table: space for space, table in ID_SPACES.items() if table not in ("", "mapping")}


class Column(NamedTuple):
    """A column: its name, width and meaning.

    semantic is one of SEMANTICS. A derived column can be computed again from the others; it is never stored in a trace
    file. words: what the values stand for, by index; () = they are numbers. width: values of a row, in an internal
    stream only; 0 = as many as the source took. unit: of an amount, as "bytes".
    """

    name: str
    type: str
    semantic: str
    about: str = ""
    derived: bool = False
    words: tuple[str, ...] = ()
    width: int = 1
    unit: str = ""


class Schema(NamedTuple):
    """A stream: its name, its columns and what its rows are. Batches may carry further columns that enrichers added.

    essential: later batches cannot be understood without these, so a full queue does not cost them.
    snapshot: a state at one time (SNAPSHOT frames), not a series of events.
    always: columns that every source's batches have: who reads them need not ask.
    internal: for enrichers only. The bus gives it to no exporter, so that what it holds never reaches an output, and
        counts the rows that no enricher took. A full queue of it costs no row of another stream. Its columns may have
        several values a row.
    """

    name: str
    columns: tuple[Column, ...]
    essential: bool = False
    snapshot: bool = False
    always: frozenset[str] = frozenset()
    internal: bool = False
    about: str = ""

    def column(self, name: str) -> Column | None:
        """The column of that name, or None."""
        return next((c for c in self.columns if c.name == name), None)


#: Frames of a stack: 128 of Python in 1,024 of native code.
MOST_FRAMES = 128 + 1024
#: Resident pages that are attributed one by one, 64 GiB in pages of 4 KiB: a run of a few bytes may claim any number.
MOST_PAGES = 1 << 24
#: Characters of a name: no path is longer, and sources cut what is.
MOST_NAME = 4096
#: Bytes of a page, on any machine.
PAGE_SIZES = frozenset(1 << bits for bits in range(12, 31))

FAULT_MAJOR, FAULT_PC_KERNEL, FAULT_WRITE, FAULT_EXECUTE, FAULT_ACCESS_KNOWN, FAULT_OBSERVER = 1, 2, 4, 8, 16, 32

MAP_READ, MAP_WRITE, MAP_EXECUTE, MAP_SHARED = 1, 2, 4, 8
#: bits 8-11 of a mapping's flags: its kind
KINDS = ("other", "file", "anon", "heap", "stack", "vdso", "kernel", "shared memory")
KIND_OTHER, KIND_FILE, KIND_ANON, KIND_HEAP, KIND_STACK, KIND_VDSO, KIND_KERNEL, KIND_SHARED = range(8)
KIND_SHIFT = 8
#: The offset of a mapping whose part of the file is not known, as Windows gives it for images only.
OFFSET_UNKNOWN = 1 << 62

(
    PAGE_READ, PAGE_WRITE, PAGE_EXECUTE, PAGE_COPY_ON_WRITE, PAGE_SHARED, PAGE_FILE, PAGE_EXCLUSIVE, PAGE_HUGE,
    PAGE_ZERO, PAGE_SWAPPED, PAGE_LOCKED, PAGE_GUARD, PAGE_LARGE,
) = (1 << bit for bit in range(13))  # fmt: skip
#: what no system counts in a resident set: the zero page, what is swapped out, guard pages, large pages (hugetlb)
NOT_RESIDENT = PAGE_ZERO | PAGE_SWAPPED | PAGE_GUARD | PAGE_LARGE

PROCESS_SEEN, PROCESS_FORK, PROCESS_EXEC, PROCESS_EXIT, PROCESS_NAME = 1, 2, 3, 4, 5
#: The name is the title that a process gave itself in place of its command line, as `postgres: checkpointer`.
PROCESS_TITLE = 6

SPACE_MAP, SPACE_UNMAP, SPACE_REPLACE, SPACE_MOVE = 1, 2, 3, 4

#: What becomes of the content of addresses. A trace file holds the index: words are added, never renumbered.
LOSS_EVENTS = (
    "",
    "unmapped",
    "replaced by a new mapping",
    "discarded",  # MADV_DONTNEED, MADV_REMOVE: the next access finds new content
    "lazily freed",  # MADV_FREE: it stays where it is written again before the system needs the memory
    "moved",  # it is found at `to` from now on, and nothing at its old place
    "forked",  # the process begins with a copy of the memory of `other`
    "executed",  # another program took the place of all
    "brk shrank",
    "perhaps lost",  # anything of it may be lost: records of it were, or the system does not report the range
    "perhaps forked",  # a copy of the memory of `other`, or that memory itself (vfork)
    "shares memory",  # the process begins in the memory of `other` itself (vfork, CLONE_VM), until it executes
    "evicted",  # pages of a file: truncated, punched, or taken from the page cache; what a process wrote itself stays
    "populated",  # pages may have come without a fault where there were none: mlock, MAP_POPULATE, MADV_POPULATE_*
    "perhaps unmapped",  # pages of files may have left the process, not the page cache; what it wrote itself stays
)
(
    LOSS_UNMAPPED, LOSS_REPLACED, LOSS_DISCARDED, LOSS_LAZILY_FREED, LOSS_MOVED, LOSS_FORKED, LOSS_EXECUTED,
    LOSS_BRK, LOSS_PERHAPS, LOSS_PERHAPS_FORKED, LOSS_SHARES, LOSS_EVICTED, LOSS_POPULATED, LOSS_PERHAPS_UNMAPPED,
) = range(1, len(LOSS_EVENTS))  # fmt: skip

#: what a frame of a stack is
FRAME_KINDS = ("", "python", "native", "kernel", "jit")
FRAME_NONE, FRAME_PYTHON, FRAME_NATIVE, FRAME_JIT = 0, 1, 2, 4
#: bits of a frame's flags: its caller is a guess (by the frame pointer); its callers are missing: the stack was cut
#: here; it was interrupted by a signal; it is the interpreter's own; its code was not checked in this fault
FRAME_GUESSED, FRAME_CUT, FRAME_SIGNAL, FRAME_INTERPRETER, FRAME_UNCHECKED = 1, 2, 4, 8, 16

#: How a fault's stack was had, or why there is none. A trace file holds the index: words are added, never renumbered,
#: so a reason that became part of another stands more than once.
STACK_HOW = (
    "",  # none, for no known reason
    "exact",  # read at the fault
    "",
    "own",  # unwound from the fault's own sample
    "",
    "no Python frame",
    *2 * ("interpreter not known",),
    *2 * ("frames not readable",),
    *2 * ("stack lost",),
    "not sampled",
    "more call sites than the limit",
    *4 * ("own, cut short",),  # unwound, but its outer frames are missing
    *2 * ("no Python frame",),
)
HOW_UNKNOWN, HOW_EXACT, HOW_OWN = 0, 1, 3
HOW_NO_PYTHON, HOW_NOT_KNOWN, HOW_NOT_READABLE, HOW_LOST = 5, 6, 9, 10
HOW_NOT_SAMPLED, HOW_NO_ROOM, HOW_OWN_CUT = 12, 13, 14

PAGE_FAULT = Schema(
    "page_fault",
    (
        Column("time_ns", "u64", "ns", "monotonic clock; absent on Windows, where the batch's window stands for it"),
        Column("pid", "u32", "id", "the process"),
        Column("tid", "u32", "id", "the thread"),
        Column("pc", "u64", "addr", "the faulting instruction"),
        Column("va", "u64", "addr", "the faulting byte address"),
        Column("flags", "u8", "bits", "1 major, 2 pc in kernel, 4 write, 8 execute, 16 = 4 and 8 known, 32 observer"),
        Column("mapping", "u32", "map", "the mapping of va, 0 = unknown"),
        Column("pc_mapping", "u32", "map", "the mapping of pc, 0 = unknown"),
        Column("file", "u32", "str", "path of va's mapping, or [heap], [stack], [anon] ...", derived=True),
        Column("pc_file", "u32", "str", "path of pc's mapping, or [kernel]", derived=True),
        Column("kind", "u8", "id", "kind of va's mapping", derived=True, words=KINDS),
        Column("stack", "u32", "stack", "the Python frame that was running, 0 = none: see stack_how"),
        Column("stack_how", "u8", "id", "how the Python stack was had, or why there is none", words=STACK_HOW),
        Column("native_stack", "u32", "stack", "the innermost frame of the sampled native stack, 0 = none"),
        Column("native_how", "u8", "id", "how the native stack was had, or why there is none", words=STACK_HOW),
        Column("weight", "u32", "count", "recorded faults of its thread that its native stack stands for"),
        Column("sampled", "u32", "count", "one out of so many faults was recorded then; absent = each was"),
        Column("cgroup", "u32", "str", "path of its thread's control group at that time, 0 = not known"),
        Column("page_size", "u32", "count", "of va's page-table entry behind the fault, 0 = not known", unit="bytes"),
    ),
    always=frozenset(("pid", "tid", "pc", "va", "flags")),
    about="page faults as the kernel recorded them",
)

#: The columns of a fault that describe its stacks.
STACK_COLUMNS = ("stack", "stack_how", "native_stack", "native_how", "weight")

PROCESS = Schema(
    "process",
    (
        Column("time_ns", "u64", "ns", "of the event"),
        Column("pid", "u32", "id", "the process"),
        Column("ppid", "u32", "id", "its parent"),
        Column("tid", "u32", "id", "the thread; the process itself where it is the pid"),
        Column("event", "u8", "id", "1 seen, 2 fork, 3 exec, 4 exit, 5 name, 6 title"),
        Column("name", "u32", "str", "the process's or thread's name, or its title"),
        Column("code", "i64", "count", "exit code, 128 + N for a signal; -1 = not known"),
    ),
    essential=True,
    always=frozenset(("time_ns", "pid", "ppid", "tid", "event")),
    about="what became of processes and threads, in time order",
)

#: What sources say of address spaces, in time order; the mapped_files enricher consumes it and gives out MAPPING rows.
#: A row of a move has the new place, and in place of a file: how many bytes (`ino`) it is of what lies until then at
#: `offset`, the time since when it is there (`dev`), and whether (`flags`) it stays at its old place, too.
ADDRESS_SPACE = Schema(
    "address_space",
    (
        Column("time_ns", "u64", "ns"),
        Column("pid", "u32", "id"),
        Column("event", "u8", "id", "1 map, 2 unmap, 3 replace: this row starts a full listing of the pid's; 4 move"),
        Column("start", "u64", "addr"),
        Column("end", "u64", "addr", "first byte past it"),
        Column("offset", "u64", "count", "file offset", unit="bytes"),
        Column("file", "u32", "str"),
        Column("dev", "u64", "id"),
        Column("ino", "u64", "id"),
        Column("flags", "u16", "bits", "1 read, 2 write, 4 execute, 8 shared; bits 8-11 kind"),
    ),
    essential=True,
)

MAPPING = Schema(
    "mapping",
    (
        Column("id", "u32", "map", "its own id"),
        Column("time_ns", "u64", "ns", "since when it is known"),
        Column("pid", "u32", "id", "the process"),
        Column("start", "u64", "addr", "its first byte"),
        Column("end", "u64", "addr", "first byte past it"),
        Column("offset", "u64", "count", "file offset", unit="bytes"),
        Column("file", "u32", "str", "its path, or [heap], [stack], [anon] ..."),
        Column("dev", "u64", "id", "the device of the file, as st_dev"),
        Column("ino", "u64", "id", "the inode of the file"),
        Column("build_id", "u32", "str", "of the file's program, in hex"),
        Column("flags", "u16", "bits", "1 read, 2 write, 4 execute, 8 shared; bits 8-11 kind"),
    ),
    essential=True,
    about="the mappings that other rows name by id",
)

#: The fault that made a page arrive is the first one since. In time order. Kinds: see TraceInfo.content_losses.
CONTENT_LOSS = Schema(
    "content_loss",
    (
        Column("time_ns", "u64", "ns", "of the call"),
        Column("pid", "u32", "id", "one row for each process that shares the memory"),
        Column("event", "u8", "id", "what became of it", words=LOSS_EVENTS),
        Column("start", "u64", "addr", "first byte of the range"),
        Column("end", "u64", "addr", "first byte past it"),
        Column("to", "u64", "addr", "of what was moved: its new start; else 0"),
        Column("other", "u32", "id", "of a process that began with the memory of another: that one's pid; else 0"),
    ),
    essential=True,
    always=frozenset(("time_ns", "pid", "event", "start", "end", "to", "other")),
    about="what took the content of addresses away, or moved it",
)

#: of a run of pages: what it is, and where it lies
_RUN = (
    Column("start", "u64", "addr", "first byte of the run"),
    Column("pages", "u32", "count", "of the run", unit="pages"),
)
_LIES = (
    Column("mapping", "u32", "map", "the mapping that it lies in, 0 = unknown"),
    Column("file", "u32", "str", "path of that mapping, or [heap], [stack], [anon] ...", derived=True),
    Column("kind", "u8", "id", "kind of that mapping", derived=True, words=KINDS),
)

RESIDENT_PAGES = Schema(
    "resident",
    (
        *_RUN,
        Column(
            "flags",
            "u16",
            "bits",
            "1 r, 2 w, 4 x, 8 copy-on-write, 16 shared, 32 file, 64 exclusive, 128 huge, "
            "256 zero page, 512 swapped, 1024 locked, 2048 guard",
        ),
        Column("shares", "u8", "count", "processes that map it, 255 = unknown"),
        *_LIES,
    ),
    snapshot=True,
    always=frozenset(("start", "pages")),
    about="snapshots of the pages in memory: runs of equal pages",
)

WRITTEN_PAGES = Schema(
    "written",
    _RUN + _LIES,
    snapshot=True,
    always=frozenset(("start", "pages")),
    about="pages that were written since the snapshot before: runs of pages",
)

#: A mark in time: a user's (`session.mark("warm")`) or a source's. MARK frames in the file.
MARK = Schema(
    "mark",
    (
        Column("time_ns", "u64", "ns"),
        Column("pid", "u32", "id"),
        Column("tid", "u32", "id"),
        Column("text", "u32", "str"),
    ),
    essential=True,
)

#: bit of a span's flags: it was still open when the trace ended
SPAN_OPEN = 1
#: What the program itself named: the spans of its own telemetry, each recorded once it has ended.
SPAN = Schema(
    "span",
    (
        Column("time_ns", "u64", "ns", "its start"),
        Column("end_ns", "u64", "ns", "its end; of one that was open when the trace ended, that time"),
        Column("pid", "u32", "id", "the process"),
        Column("tid", "u32", "id", "the thread that started it"),
        Column("name", "u32", "str", "its name"),
        Column("flags", "u8", "bits", "1 it was still open when the trace ended"),
        Column("span_id", "u64", "id", "its id in the tracing backend"),
        Column("trace_high", "u64", "id", "the upper half of its trace's id"),
        Column("trace_low", "u64", "id", "the lower half of its trace's id"),
    ),
    always=frozenset(("time_ns", "end_ns", "pid", "tid", "name", "flags")),
    about="the spans of the program's own telemetry, where a session traces its own process",
)

#: A stack is the id of its innermost frame; a row names its caller's, whose row comes first (wstrace.call_sites).
CALL_SITE = Schema(
    "call_site",
    (
        Column("id", "u32", "stack", "its own id"),
        Column("parent", "u32", "stack", "its caller, 0 = none: it is the outermost frame"),
        Column("kind", "u8", "id", "what its code is", words=FRAME_KINDS),
        Column("mapping", "u32", "map", "the mapping of its code; 0 of a Python frame"),
        Column("offset", "u64", "count", "of its instruction: into the file of the mapping; the address without one"),
        Column("function", "u32", "str", "its qualified name, of a Python or JIT frame"),
        Column("file", "u32", "str", "its source file, of a Python or JIT frame"),
        Column("line", "u32", "count", "in that file, from 1; 0 = not known"),
        Column(
            "flags",
            "u8",
            "bits",
            "1 guessed, 2 the stack was cut here, 4 interrupted by a signal, 8 the interpreter's own, 16 not checked",
        ),
    ),
    essential=True,
    always=frozenset(("id", "parent", "kind", "mapping", "offset", "function", "file", "line", "flags")),
    about="the frames of stacks, as a tree",
)

#: Registers and stack bytes of sampled faults, to be unwound by an enricher. They hold the target's memory.
STACK_DUMP = Schema(
    "stack_dump",
    (
        Column("time_ns", "u64", "ns"),
        Column("pid", "u32", "id"),
        Column("tid", "u32", "id"),
        Column("pc", "u64", "addr", "the faulting instruction"),
        Column("va", "u64", "addr", "the faulting byte address"),
        Column("registers", "u64", "addr", "as perf gives them: AX BX CX DX SI DI BP SP IP R8-R15", width=17),
        Column("dump", "u64", "bits", "words of the stack from the stack pointer up", width=0),
        Column("size", "u32", "count", "bytes of the dump that are real"),
    ),
    always=frozenset(("time_ns", "pid", "tid", "pc", "va", "registers", "dump", "size")),
    internal=True,
)

STREAMS = {s.name: s for s in (PAGE_FAULT, PROCESS, ADDRESS_SPACE, MAPPING, CALL_SITE, CONTENT_LOSS, RESIDENT_PAGES,
                               WRITTEN_PAGES, MARK, SPAN, STACK_DUMP)}  # fmt: skip


def own_id(table: str) -> str:
    """The column of a table (TABLES) that is its rows' own id: the first of its semantic. Others name further rows."""
    return next(column.name for column in STREAMS[table].columns if column.semantic == TABLES[table])
