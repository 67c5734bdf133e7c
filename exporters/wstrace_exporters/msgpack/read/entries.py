"""The positions of a part's frames, as an array with an ENTRY for each frame."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ENTRY = np.dtype(
    [("kind", "|u1"), ("offset", "<u8"), ("length", "<u4"), ("n", "<u4"), ("t0", "<u8"), ("t1", "<u8"),
     ("stream", "<u2"), ("pids", "<u8"), ("seq", "<u8")]
)  # fmt: skip
assert ENTRY.itemsize == 51  # the size in memory; the file has another layout
_U32 = (1 << 32) - 1


def tiled(rows: NDArray[Any], size: int) -> NDArray[Any] | None:
    """Entries in the order of the file if they cover it without a gap, so that no frame is hidden; else None."""
    if (rows[:, :4] > np.array([127, size, _U32, _U32], "<u8")).any():
        return None
    rows = rows[np.argsort(rows[:, 1], kind="stable")]
    entries = np.zeros(len(rows), ENTRY)
    for name, column in zip(ENTRY.names or (), rows.T, strict=False):
        entries[name] = column
    entries["seq"] = np.arange(len(rows))
    ends = entries["offset"] + entries["length"]
    if entries["offset"][0] != 0 or ends[-1] != size or not np.array_equal(entries["offset"][1:], ends[:-1]):
        return None
    return entries
