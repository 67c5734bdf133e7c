"""Which times, columns and processes of a file a selection needs."""

from __future__ import annotations

import numpy as np

from wstrace.table import Selection
from wstrace_exporters.msgpack.format.index import pid_set

_LAST = (1 << 64) - 1


def time64(ns: int) -> np.uint64:
    """A time in nanoseconds as u64, like the times of records; a time out of range becomes the nearest u64."""
    return np.uint64(min(max(ns, 0), _LAST))


#: Derived column -> the stored columns that it is computed from.
DERIVED_FROM = {"file": ("mapping",), "kind": ("mapping",), "pc_file": ("pc_mapping", "flags")}

#: Selects every row of every stream.
EVERYTHING = Selection()


def stored_columns(selection: Selection) -> frozenset[str] | None:
    """The stored columns that a selection needs; None = all."""
    if selection.columns is None:
        return None
    # the name itself, too: what one stream derives, another stores (`file` of a call site)
    needed = {source for name in selection.columns for source in (name, *DERIVED_FROM.get(name, ()))}
    if selection.start is not None or selection.end is not None:
        needed.add("time_ns")
    if selection.pids is not None:
        needed.add("pid")
    return frozenset(needed)


def pids_wanted(selection: Selection) -> int:
    """The processes of a selection as a set of bits, as in the index: see index.pid_set."""
    return pid_set(selection.pids or ())
