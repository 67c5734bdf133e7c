"""How many mappings each page has, from /proc/kpagecount (root only), for pages that are not exclusively mapped.

Source: Linux Documentation/admin-guide/mm/pagemap.rst.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.errors import Unavailable
from wstrace_os.linux.pagemap import EXCLUSIVE_BIT, PFN_MASK, PRESENT_BIT

UNKNOWN = 255
_GAP = 512  # pages that are read rather than skipped: a call costs as much
_CHUNK = 1 << 20


class MapCounts:
    """Counts the sharers of pages. Raises Unavailable without the right (CAP_SYS_ADMIN)."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/kpagecount", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            remedy = "run wstrace as root, or leave share counts out"
            raise Unavailable(f"share counts need /proc/kpagecount: {error.strerror}", remedy) from None

    def counts(self, entries: NDArray[Any], top: NDArray[Any]) -> NDArray[Any]:
        """The number of mappings of each page as u8; 254 = as many or more, 255 = unknown.

        Args:
            entries: pagemap entries u64, shape (n,); top: their masked top bytes.
        """
        counts = np.where(top & EXCLUSIVE_BIT, 1, UNKNOWN).astype("u1")
        rows = np.flatnonzero((top & (PRESENT_BIT | EXCLUSIVE_BIT)) == PRESENT_BIT)
        frames, back = np.unique(entries[rows] & np.uint64(PFN_MASK), return_inverse=True)
        if len(frames):
            counts[rows] = self._of_frames(frames)[back]
        return counts

    def _of_frames(self, frames: NDArray[Any]) -> NDArray[Any]:
        found = np.full(len(frames), UNKNOWN, "u1")
        first = 1 if frames[0] == 0 else 0  # frame 0 means that the kernel hides the number
        cuts = np.flatnonzero(np.diff(frames[first:]) > _GAP) + 1 + first
        for low, high in zip([first, *cuts], [*cuts, len(frames)], strict=True):
            for at in range(low, high, _CHUNK):
                part = frames[at : min(at + _CHUNK, high)]
                if len(part):
                    found[at : at + len(part)] = self._read(part)
        return found

    def _read(self, frames: NDArray[Any]) -> NDArray[Any]:
        base = int(frames[0])
        raw = os.pread(self._fd, (int(frames[-1]) - base + 1) * 8, base * 8)
        counts = np.frombuffer(raw[: len(raw) // 8 * 8], "<u8")
        at = frames - np.uint64(base)
        known = at < len(counts)
        return np.where(known, np.minimum(counts[np.where(known, at, 0)], 254), UNKNOWN).astype("u1")

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)
