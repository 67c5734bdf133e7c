"""What the kernel knows of page frames (root only): how many mappings each has, and whether it is zeros or huge.

Source: Linux Documentation/admin-guide/mm/pagemap.rst; fs/proc/page.c; include/uapi/linux/kernel-page-flags.h.
"""

from __future__ import annotations

import ctypes
import functools
import io
import mmap
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from wstrace.errors import Unavailable
from wstrace_plugins.os.linux.pagemap import EXCLUSIVE_BIT, IS_HUGE, IS_PFNZERO, PAGE, PFN_MASK, PRESENT_BIT, Pagemap

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNKNOWN = 255
_GAP = 512  # frames that are read rather than skipped: a call costs as much
_CHUNK = 1 << 20
#: bits of /proc/kpageflags
_HEAD, _TAIL, _THP, _ZERO_PAGE = (np.uint64(1 << bit) for bit in (15, 16, 22, 24))
#: The pages of a huge page: as many as fill a page of a page table.
_HUGE_PAGES = PAGE // 8


class _Table:
    """A file of one number a page frame. A context manager. Raises OSError."""

    def __init__(self, name: str) -> None:
        self._file = io.FileIO(f"/proc/{name}")

    def of(self, frames: NDArray[Any], unknown: int) -> NDArray[Any]:
        """The number of each frame, u64; `unknown` where there is none. The frames ascend."""
        found = np.full(len(frames), unknown, "<u8")
        first = 1 if len(frames) and frames[0] == 0 else 0  # frame 0 means that the kernel hides the number
        cuts = np.flatnonzero(np.diff(frames[first:]) > _GAP) + 1 + first
        for low, high in zip([first, *cuts], [*cuts, len(frames)], strict=True):
            for at in range(low, high, _CHUNK):
                part = frames[at : min(at + _CHUNK, high)]
                numbers = self._read(int(part[0]), int(part[-1]))
                place = part - part[0]
                known = place < len(numbers)
                found[at : at + len(part)][known] = numbers[place[known]]
        return found

    def _read(self, first: int, last: int) -> NDArray[Any]:
        self._file.seek(first * 8)
        raw = self._file.read((last - first + 1) * 8) or b""
        return np.frombuffer(raw[: len(raw) // 8 * 8], "<u8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class MapCounts(_Table):
    """Counts the sharers of pages. Raises Unavailable without the right (CAP_SYS_ADMIN)."""

    def __init__(self) -> None:
        try:
            super().__init__("kpagecount")
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
        number = self.of(frames, (1 << 64) - 1)
        known = number != (1 << 64) - 1
        counts[rows] = np.where(known, np.minimum(number, 254), UNKNOWN).astype("u1")[back]
        return counts


class FrameKinds(_Table):
    """Tells pages of zeros and huge ones apart where the kernel has no PAGEMAP_SCAN. Raises OSError.

    It reads of those blocks alone that lie in memory as a huge page would: the flags of every page cost 0.9 s a GiB.
    """

    def __init__(self) -> None:
        super().__init__("kpageflags")

    def categories(self, entries: NDArray[Any], top: NDArray[Any], pages: NDArray[Any]) -> NDArray[Any]:
        """IS_PFNZERO and IS_HUGE of each page as u1, as PAGEMAP_SCAN gives them.

        A huge page of which only the page tables were split counts as huge, too, where it lies in one.

        Args:
            entries: pagemap entries u64, shape (n,); top: their masked top bytes; pages: the numbers of the pages.
        """
        categories = np.zeros(len(entries), "u1")
        rows = np.flatnonzero(top & PRESENT_BIT)
        frame = entries[rows] & np.uint64(PFN_MASK)
        categories[rows] = (frame == _zero_frame()) * IS_PFNZERO
        lies = (frame - pages[rows]) % np.uint64(_HUGE_PAGES) == 0
        rows, block = rows[lies], frame[lies] // np.uint64(_HUGE_PAGES)
        blocks, back = np.unique(block, return_inverse=True)
        huge, zero = self._huge(blocks)
        categories[rows] |= (huge * IS_HUGE + zero * IS_PFNZERO).astype("u1")[back]
        return categories

    def _huge(self, blocks: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Whether each block of frames is a huge page, and whether it is the one of zeros.

        A smaller folio at its beginning would end, and another begin, at a power of 2.
        """
        offsets = np.array([0, *(1 << bit for bit in range(_HUGE_PAGES.bit_length() - 1))], "<u8")
        every = (blocks[:, None] * np.uint64(_HUGE_PAGES) + offsets).ravel()
        flags = self.of(every, 0).reshape(-1, len(offsets))
        first, rest = flags[:, 0], flags[:, 1:]
        huge = ((first & _HEAD) != 0) & ((first & _THP) != 0) & ((rest & _TAIL) != 0).all(1)
        return huge, huge & ((first & _ZERO_PAGE) != 0)


def tells_kinds() -> bool:
    """Whether FrameKinds works here: /proc/kpageflags is there, and the numbers of page frames are not hidden.

    Asked anew each time: a process that was root may be another user by then.
    """
    try:
        with FrameKinds():
            return _zero_frame() != 0
    except OSError:
        return False


@functools.cache
def _zero_frame() -> int:
    """The number of the frame that every private page is which was only read; 0 = the kernel hides it."""
    page = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page.read(1)
    at = ctypes.c_ubyte.from_buffer(page)
    try:
        pagemap = Pagemap()
        try:
            return int(pagemap.entries([ctypes.addressof(at)], [1])[0]) & PFN_MASK
        finally:
            pagemap.close()
    except Unavailable:
        return 0
    finally:
        del at
        page.close()
