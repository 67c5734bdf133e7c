"""A process's working set at one moment: wstrace.working_set(), its totals, its owners and its batches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Totals:
    """What the system counts for a process, in bytes; None where it does not tell.

    Linux: VmRSS, Private_* and Shared_* of smaps_rollup, VmPTE. Windows: WorkingSetSize, private usage of the working
    set, the rest; page tables are not told.
    """

    total: int | None = None
    private: int | None = None
    shared: int | None = None
    page_tables: int | None = None
