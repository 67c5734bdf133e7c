"""A process's working set at one moment: wstrace.working_set(), its totals, its owners and its batches."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from wstrace import schema
from wstrace.analysis.tally import combinations
from wstrace.batch import Batch, Columns, Dictionary, address_space, snapshot_parts
from wstrace.clock import now_ns
from wstrace.text import printable, size
from wstrace_plugins.working_set.backend import backend

if TYPE_CHECKING:
    from numpy.typing import NDArray

By = Literal["module", "mapping", "kind"]


class Owner(NamedTuple):
    """What one owner has: resident bytes, those of them that no other process has, and the bytes it has mapped.

    tables: resident bytes of page tables, which are neither private nor shared (Windows).
    """

    name: str
    kind: str
    resident: int
    private: int
    mapped: int
    tables: int = 0

    @property
    def shared(self) -> int:
        """Resident bytes that other processes have too."""
        return self.resident - self.private - self.tables


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """The pages of one process at one moment.

    mappings: columns start, end, offset, file, dev, ino, flags (schema.ADDRESS_SPACE), sorted by start.
    runs: columns start, pages, flags, row (index into mappings) and, where requested, shares (schema.RESIDENT_PAGES),
        sorted by start. A run with a flag of schema.NOT_RESIDENT is not resident: no total counts it.
    time_ns: when it was read, monotonic. cost_seconds: CPU time of the reading. page_table_bytes (VmPTE on Linux),
    large_bytes (hugetlb, or Windows's large pages): what no resident set counts; None when not known.
    """

    pid: int
    name: str
    page_size: int
    time_ns: int
    mappings: Columns
    runs: Columns
    strings: Dictionary = field(repr=False)
    cost_seconds: float = 0.0
    page_table_bytes: int | None = None
    large_bytes: int | None = None

    def __repr__(self) -> str:
        sizes = f"{size(self.total_bytes)} resident, {size(self.private_bytes)} of it private"
        return f"<{type(self).__name__} of {printable(self.name)} ({self.pid}): {sizes}>"

    def _repr_html_(self) -> str:
        from wstrace.notebook import shown

        heads = ["resident", "private", "shared", "kind", "module"]
        return shown(lambda: ([repr(self)], heads, [
            (size(one.resident), size(one.private), size(one.shared), one.kind, one.name)
            for one in self.by() if one.resident
        ]))  # fmt: skip

    @property
    def kinds(self) -> NDArray[Any]:
        """The kind of each mapping, an index into schema.KINDS, shape (n,)."""
        return (self.mappings["flags"] >> schema.KIND_SHIFT) & 15

    @property
    def resident(self) -> NDArray[Any]:
        """Mask of the runs that count as resident, shape (n,)."""
        mask: NDArray[Any] = (self.runs["flags"] & schema.NOT_RESIDENT) == 0
        return mask

    def count(self, mask: NDArray[Any]) -> int:
        """Bytes of the runs of that mask."""
        return int(self.runs["pages"][mask].sum(dtype=np.int64)) * self.page_size

    @property
    def total_bytes(self) -> int:
        """The resident set: Rss of smaps_rollup on Linux, WorkingSetSize on Windows.

        VmRSS is the same but for what the kernel has not counted yet (before Linux 6.2, some pages of each thread).
        """
        return self.count(self.resident)

    @property
    def private_bytes(self) -> int:
        """What no other process has: Private_Clean + Private_Dirty of smaps_rollup.

        The reading process is one of the others: what it has mapped itself (Python, libc, OpenSSL) counts as shared
        while it reads.
        """
        return self.count(self.resident & ((self.runs["flags"] & schema.PAGE_EXCLUSIVE) != 0))

    @property
    def shared_bytes(self) -> int:
        """What other processes have too: Shared_Clean + Shared_Dirty of smaps_rollup.

        On Windows the total holds page tables too, which are neither: Private + Shared + Page tables = Total.
        """
        return self.total_bytes - self.private_bytes - self.count(self.resident & self.tables)

    @property
    def tables(self) -> NDArray[Any]:
        """Mask of the runs that are page tables, shape (n,)."""
        kernel = self.kinds[self.runs["row"]] == schema.KIND_KERNEL
        mask: NDArray[Any] = kernel & ((self.runs["flags"] & (schema.PAGE_EXCLUSIVE | schema.PAGE_SHARED)) == 0)
        return mask

    @property
    def swapped_bytes(self) -> int:
        """What is swapped out."""
        return self.count((self.runs["flags"] & schema.PAGE_SWAPPED) != 0)

    def owner(self, row: int) -> str:
        """The file, or `[heap]`, `[anon]` ..., of the mapping in that row."""
        return self.strings[int(self.mappings["file"][row])] or "[unknown]"

    def by(self, what: By = "module") -> list[Owner]:
        """Who has the pages, most resident first.

        Args:
            what: module = the file or `[heap]`, `[stack]`, `[anon]`; mapping = each range of addresses; kind = file,
                anon, heap, stack, shared memory ...
        """
        kinds = self.kinds
        keys = {"module": self.mappings["file"], "mapping": np.arange(len(kinds)), "kind": kinds}[what]
        rows, of_mapping = combinations(keys)
        of_run = of_mapping[self.runs["row"]]
        weights = np.where(self.resident, self.runs["pages"], 0) * float(self.page_size)
        exclusive = (self.runs["flags"] & schema.PAGE_EXCLUSIVE) != 0
        resident, private, tables = (
            np.bincount(of_run, one, len(rows)) for one in (weights, weights * exclusive, weights * self.tables)
        )
        mapped = np.bincount(of_mapping, self.mappings["end"] - self.mappings["start"], len(rows))
        owners = [
            Owner(self._group_name(what, row), schema.KINDS[kinds[row]], *map(int, sizes))
            for row, *sizes in zip(rows.tolist(), resident, private, mapped, tables, strict=True)
        ]
        return sorted(owners, key=lambda owner: (-owner.resident, owner.name))

    def _group_name(self, what: By, row: int) -> str:
        """The name of the group that the mapping in that row is in."""
        if what == "kind":
            return schema.KINDS[self.kinds[row]]
        if what == "module":
            return self.owner(row)
        start, end = int(self.mappings["start"][row]), int(self.mappings["end"][row])
        return f"{start:08x}-{end:08x} {self.owner(row)}"

    def batches(self, snap: int, source: str = "working_set") -> Iterator[Batch]:
        """What a source publishes: the mappings (address_space), then the runs (resident)."""
        yield address_space(self.pid, self.time_ns, self.mappings, self.strings, source)
        columns = {name: column for name, column in self.runs.items() if name != "row"}
        yield from snapshot_parts(schema.RESIDENT_PAGES, columns, snap=snap, pid=self.pid, time_ns=self.time_ns,
                         strings=self.strings, source=source)  # fmt: skip


def working_set(pid: int | None = None, *, shares: bool = False, strings: Dictionary | None = None) -> WorkingSet:
    """What is in a process's memory now.

    Args:
        pid: of which process; None = the calling one (reading it needs memory of its own, which it then sees).
        shares: also how many mappings each page has (Linux: needs root).
        strings: the Dictionary for names; None = one of its own.

    Raises:
        TargetExited: the process is gone, or ended or executed another program while it was read.
        Unavailable: it belongs to someone else, or is a kernel thread.
    """
    strings = Dictionary() if strings is None else strings
    started = time.thread_time()
    with backend().Space(os.getpid() if pid is None else pid) as space:
        return read(space, strings, shares=shares, started=started)


def read(space: Any, strings: Dictionary, *, shares: bool = False, started: float | None = None) -> WorkingSet:
    """What is in an opened address space now; raises as working_set() does.

    Args:
        space: of the running system's backend.
        started: the thread's CPU seconds at which the reading began.
    """
    started = time.thread_time() if started is None else started
    time_ns = now_ns()
    mappings = space.mappings(strings)
    runs = space.runs(mappings, shares=shares)
    uncounted = space.uncounted()
    cost = time.thread_time() - started
    return WorkingSet(space.pid, space.name, space.page_size, time_ns, mappings, runs, strings, cost, *uncounted)
