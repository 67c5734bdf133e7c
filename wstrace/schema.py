"""The record model: every stream, its columns, their widths, meaning and unit. One place, no operating system.

A column that a system cannot fill is absent from its batches, never zero. Stream and column names are those of the
trace file (WSTF v1); a name is never reused with another meaning. This module imports nothing, so that reading a
schema costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

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
}
#: Semantics whose numbers are ids that a session, a part of a file and a merged file each give anew: u32, 0 = unknown.
#: Semantic -> the stream whose rows they name, and whose own id is the column of that semantic; "" = the Dictionary.
#: Whoever moves records between two of those recodes by this table, so another id space is one more entry here.
ID_SPACES = {"str": "", "map": "mapping"}
#: Those of the streams that are such tables whose rows are given as those of any stream are: table -> semantic.
TABLES = {table: space for space, table in ID_SPACES.items() if table not in ("", "mapping")}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, width and meaning.

    semantic is one of SEMANTICS. A derived column can be computed again from the others; it is never stored in a trace
    file.
    """

    name: str
    type: str
    semantic: str
    about: str = ""
    derived: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """A stream: its name and its columns. Batches may carry further columns that enrichers added.

    essential: later batches cannot be understood without these, so a full queue does not cost them.
    snapshot: a state at one time (SNAPSHOT frames), not a series of events.
    always: columns that every source's batches have: who reads them need not ask.
    """

    name: str
    columns: tuple[Column, ...]
    essential: bool = False
    snapshot: bool = False
    always: frozenset[str] = frozenset()

    def column(self, name: str) -> Column | None:
        """The column of that name, or None."""
        return next((c for c in self.columns if c.name == name), None)


# -- bits of the `flags` columns ---------------------------------------------------------------------------------

FAULT_MAJOR, FAULT_PC_KERNEL, FAULT_WRITE, FAULT_EXECUTE, FAULT_ACCESS_KNOWN, FAULT_OBSERVER = 1, 2, 4, 8, 16, 32

MAP_READ, MAP_WRITE, MAP_EXECUTE, MAP_SHARED = 1, 2, 4, 8
#: bits 8-11 of a mapping's flags: its kind
KINDS = ("other", "file", "anon", "heap", "stack", "vdso", "kernel", "shared memory")
KIND_OTHER, KIND_FILE, KIND_ANON, KIND_HEAP, KIND_STACK, KIND_VDSO, KIND_KERNEL, KIND_SHARED = range(8)
KIND_SHIFT = 8
#: a mapping's offset from here on: which part of the file it shows is not known (Windows tells of images only)
OFFSET_UNKNOWN = 1 << 62

(
    PAGE_READ,
    PAGE_WRITE,
    PAGE_EXECUTE,
    PAGE_COPY_ON_WRITE,
    PAGE_SHARED,
    PAGE_FILE,
    PAGE_EXCLUSIVE,
    PAGE_HUGE,
    PAGE_ZERO,
    PAGE_SWAPPED,
    PAGE_LOCKED,
    PAGE_GUARD,
    PAGE_LARGE,
) = (1 << bit for bit in range(13))
#: what no system counts in a resident set: the zero page, what is swapped out, guard pages, large pages (hugetlb)
NOT_RESIDENT = PAGE_ZERO | PAGE_SWAPPED | PAGE_GUARD | PAGE_LARGE

PROCESS_SEEN, PROCESS_FORK, PROCESS_EXEC, PROCESS_EXIT, PROCESS_NAME = 1, 2, 3, 4, 5

SPACE_MAP, SPACE_UNMAP, SPACE_REPLACE = 1, 2, 3

# -- streams -----------------------------------------------------------------------------------------------------

PAGE_FAULT = Schema(
    "page_fault",
    (
        Column("time_ns", "u64", "ns", "monotonic clock; absent on Windows, where the batch's window stands for it"),
        Column("pid", "u32", "id"),
        Column("tid", "u32", "id"),
        Column("pc", "u64", "addr", "the faulting instruction"),
        Column("va", "u64", "addr", "the faulting byte address"),
        Column(
            "flags", "u8", "bits", "1 major, 2 pc in the kernel, 4 write, 8 execute, 16 = 4 and 8 known, 32 observer"
        ),
        Column("mapping", "u32", "map", "the mapping of va, 0 = unknown"),
        Column("pc_mapping", "u32", "map", "the mapping of pc, 0 = unknown"),
        Column("file", "u32", "str", "path of va's mapping, or [heap], [stack], [anon] ...", derived=True),
        Column("pc_file", "u32", "str", "path of pc's mapping, or [kernel]", derived=True),
        Column("kind", "u8", "id", "kind of va's mapping: an index into KINDS", derived=True),
    ),
    always=frozenset(("pid", "tid", "pc", "va", "flags")),
)

PROCESS = Schema(
    "process",
    (
        Column("time_ns", "u64", "ns"),
        Column("pid", "u32", "id"),
        Column("ppid", "u32", "id"),
        Column("tid", "u32", "id", "the thread; the process itself where it is the pid"),
        Column("event", "u8", "id", "1 seen, 2 fork, 3 exec, 4 exit, 5 name"),
        Column("name", "u32", "str", "the process's or thread's name"),
        Column("code", "i64", "count", "exit code, 128 + N for a signal; -1 = not known"),
    ),
    essential=True,
    always=frozenset(("time_ns", "pid", "ppid", "tid", "event")),
)

#: What sources say of address spaces, in time order; the mapped_files enricher consumes it and gives out MAPPING rows.
ADDRESS_SPACE = Schema(
    "address_space",
    (
        Column("time_ns", "u64", "ns"),
        Column("pid", "u32", "id"),
        Column("event", "u8", "id", "1 map, 2 unmap, 3 replace: this row starts a full listing of the pid's mappings"),
        Column("start", "u64", "addr"),
        Column("end", "u64", "addr", "first byte past it"),
        Column("offset", "u64", "count", "file offset in bytes"),
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
        Column("time_ns", "u64", "ns"),
        Column("pid", "u32", "id"),
        Column("start", "u64", "addr"),
        Column("end", "u64", "addr", "first byte past it"),
        Column("offset", "u64", "count", "file offset in bytes"),
        Column("file", "u32", "str"),
        Column("dev", "u64", "id"),
        Column("ino", "u64", "id"),
        Column("build_id", "u32", "str", "hex"),
        Column("flags", "u16", "bits", "1 read, 2 write, 4 execute, 8 shared; bits 8-11 kind"),
    ),
    essential=True,
)

RESIDENT_PAGES = Schema(
    "resident",
    (
        Column("start", "u64", "addr", "first byte of the run"),
        Column("pages", "u32", "count"),
        Column(
            "flags",
            "u16",
            "bits",
            "1 r, 2 w, 4 x, 8 copy-on-write, 16 shared, 32 file, 64 exclusive, 128 huge, "
            "256 zero page, 512 swapped, 1024 locked, 2048 guard",
        ),
        Column("shares", "u8", "count", "processes that map it, 255 = unknown"),
        Column("mapping", "u32", "map"),
        Column("file", "u32", "str", derived=True),
        Column("kind", "u8", "id", derived=True),
    ),
    snapshot=True,
    always=frozenset(("start", "pages")),
)

WRITTEN_PAGES = Schema(
    "written",
    (
        Column("start", "u64", "addr"),
        Column("pages", "u32", "count"),
        Column("mapping", "u32", "map"),
        Column("file", "u32", "str", derived=True),
        Column("kind", "u8", "id", derived=True),
    ),
    snapshot=True,
    always=frozenset(("start", "pages")),
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

STREAMS = {s.name: s for s in (PAGE_FAULT, PROCESS, ADDRESS_SPACE, MAPPING, RESIDENT_PAGES, WRITTEN_PAGES, MARK)}


def own_id(table: str) -> str:
    """The column of a table (TABLES) that is its rows' own id: the first of its semantic. Others name further rows."""
    return next(column.name for column in STREAMS[table].columns if column.semantic == TABLES[table])
