"""Names what lies at addresses of a process: `module!section(n)`, `module+0x...`, `[heap]`, by its snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.interfaces import Resolver
from wstrace.schema import KIND_FILE, KIND_SHIFT
from wstrace_working_set.working_set import WorkingSet

KERNEL = 1 << 63  # both systems' 64-bit kernels live in the upper half


def names(addresses: NDArray[Any], snapshots: Sequence[WorkingSet], resolver: Resolver | None) -> list[str]:
    """The name of each address, by the first snapshot in which it is mapped.

    Args:
        addresses: u64, shape (n,); unique ones: each is resolved once.
        snapshots: of one process, the most trusted first.
        resolver: tells sections; None = the module's name and the offset into its file.
    """
    found = np.where(addresses >= np.uint64(KERNEL), "[kernel]", "[unknown]").astype(object)
    for taken in snapshots:
        start, end = taken.mappings["start"], taken.mappings["end"]
        row = np.searchsorted(start, addresses, "right") - 1
        open_ = (found == "[unknown]") & (row >= 0)
        open_[open_] = addresses[open_] < end[row[open_]]
        kinds = (taken.mappings["flags"][row] >> KIND_SHIFT) & 15
        for code in np.unique(taken.mappings["file"][row[open_]]).tolist():
            some = open_ & (taken.mappings["file"][row] == code)
            found[some] = taken.strings[code] or "[unknown]"
            some &= kinds == KIND_FILE
            if resolver is not None and some.any():
                offset = addresses[some] - start[row[some]] + taken.mappings["offset"][row[some]]
                found[some] = [str(place) for place in resolver.resolve(taken.strings[code], offset, pid=taken.pid)]
    names: list[str] = found.tolist()
    return names
