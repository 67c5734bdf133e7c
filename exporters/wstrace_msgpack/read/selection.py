"""What of a file a selection needs."""

from __future__ import annotations

import numpy as np

from wstrace.table import Selection
from wstrace_msgpack.format.index import pid_set

_LAST = (1 << 64) - 1


def time64(ns: int) -> np.uint64:
    """A bound in time as the records have them: one before or after all of them is the first or the last of all."""
    return np.uint64(min(max(ns, 0), _LAST))


#: derived column -> the stored ones it is computed from
DERIVED_FROM = {"file": ("mapping",), "kind": ("mapping",), "pc_file": ("pc_mapping", "flags")}

#: every row of every stream
EVERYTHING = Selection()


def stored_columns(selection: Selection) -> frozenset[str] | None:
    """The stored columns that are needed for it; None for all."""
    if selection.columns is None:
        return None
    needed = {source for name in selection.columns for source in DERIVED_FROM.get(name, (name,))}
    if selection.start is not None or selection.end is not None:
        needed.add("time_ns")
    if selection.pids is not None:
        needed.add("pid")
    return frozenset(needed)


def pids_wanted(selection: Selection) -> int:
    """Its processes as the index has them."""
    return pid_set(selection.pids or ())
