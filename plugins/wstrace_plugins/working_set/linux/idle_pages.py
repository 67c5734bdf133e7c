"""Idle page tracking on Linux: which page frames have not been used since they were marked idle. Root only.

A frame that is marked loses its referenced bits, and the mark at the next use, which costs the process nothing. Unlike
clear_refs it keeps what the kernel itself has learned of the page (PG_young), so that its choice of unused pages stays
as it was. The frames of a large folio have one mark, that of the first.

Source: Linux Documentation/admin-guide/mm/idle_page_tracking.rst, pagemap.rst (kpageflags); mm/page_idle.c.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable
from wstrace.schema import KIND_SHIFT, NOT_RESIDENT
from wstrace_plugins.os.linux import pagemap, procfs
from wstrace_plugins.working_set.backend import Uses
from wstrace_plugins.working_set.linux.space import Space

BITMAP, FLAGS = Path("/sys/kernel/mm/page_idle/bitmap"), Path("/proc/kpageflags")
_TAIL = np.uint64(1 << 16)  # KPF_COMPOUND_TAIL
_FOLIO_BITS = 30  # of the number of frames in a folio: more than any page table has entries
_WORD, _BITS = np.uint64(6), np.uint64(63)  # the bitmap is read and written in words of 64 frames
_GAP = 512  # flags that are read rather than skipped; of the bitmap none: the kernel looks for all users of each frame

Frames = NDArray[np.uint64]


class IdlePages:
    """The idle marks of one process's pages; see backend.ReferencedBits. Raises Unavailable where there are none."""

    method = "idle pages"

    def __init__(self, pid: int) -> None:
        seen = procfs.stat_with_memory(pid)
        self.pid, self.name, self._image = pid, seen.name, seen.image
        self._space, self._pagemap, self._strings = Space(pid), pagemap.Pagemap(pid), Dictionary()
        try:
            self._bitmap = os.open(BITMAP, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"no idle page tracking ({BITMAP}): {error.strerror}") from None

    def clear(self) -> None:
        """Marks the frames that it has now."""
        for first, words in words_of(heads(self._frames()[0])):
            os.pwrite(self._bitmap, words.tobytes(), first * 8)

    def read(self) -> Uses:
        """What has been used since, and what is resident: a page that came meanwhile has no mark."""
        frames, rows, maps = self._frames()
        if procfs.stat_with_memory(self.pid).image != self._image:
            raise TargetExited(f"process {self.pid} ({self.name}) executed another program while it was watched")
        asked, which = np.unique(heads(frames), return_inverse=True)
        idle = np.zeros(len(asked), np.bool_)
        for first, words in words_of(asked):
            found = np.frombuffer(os.pread(self._bitmap, words.nbytes, first * 8), "<u8")
            at = (asked >> _WORD).astype(np.int64) - first
            inside = np.flatnonzero((at >= 0) & (at < len(found)))
            idle[inside] = found[at[inside]] >> (asked[inside] & _BITS) & np.uint64(1) != 0
        n = len(maps["start"])
        resident = np.bincount(rows, minlength=n) * pagemap.PAGE
        used = np.bincount(rows[~idle[which]], minlength=n) * pagemap.PAGE
        names = [self._strings[code] for code in maps["file"].tolist()]
        return Uses(names, (maps["flags"] >> KIND_SHIFT) & 15, used, resident)

    def close(self) -> None:
        """Closes what it has opened."""
        os.close(self._bitmap)
        self._space.close()
        self._pagemap.close()

    def _frames(self) -> tuple[Frames, NDArray[np.intp], dict[str, NDArray[np.uint64]]]:
        """The frame of each resident page and the row of its mapping; the mappings."""
        maps = self._space.mappings(self._strings)
        runs = self._space.runs(maps)
        there = (runs["flags"] & NOT_RESIDENT) == 0
        start, pages = runs["start"][there], runs["pages"][there]
        entries = self._pagemap.entries(start, pages)
        if len(entries) != pages.sum():
            raise TargetExited(f"process {self.pid} ({self.name}) ended")
        rows = np.repeat(runs["row"][there].astype(np.intp), pages)
        frames = entries & np.uint64(pagemap.PFN_MASK)
        known = (entries >> np.uint64(63) != 0) & (frames != 0)  # it may have gone since
        return frames[known], rows[known], maps


def heads(frames: Frames) -> Frames:
    """The first frame of the folio of each."""
    found = frames.copy()
    with FLAGS.open("rb") as opened:
        for _ in range(_FOLIO_BITS):
            tails = np.flatnonzero(_flags(opened.fileno(), found) & _TAIL)
            if not len(tails):
                break
            # folios are aligned to their sizes: without its lowest bit, the number of a tail is nearer to the head's
            found[tails] &= found[tails] - np.uint64(1)
    return found


def _flags(fd: int, frames: Frames) -> NDArray[np.uint64]:
    """/proc/kpageflags of each frame."""
    found = np.zeros(len(frames), "<u8")
    order = np.argsort(frames, kind="stable")
    asked = frames[order]
    for part in np.split(np.arange(len(asked)), np.flatnonzero(np.diff(asked) > _GAP) + 1) if len(asked) else ():
        first, last = int(asked[part[0]]), int(asked[part[-1]])
        answer = np.frombuffer(os.pread(fd, (last - first + 1) * 8, first * 8), "<u8")
        at = (asked[part] - np.uint64(first)).astype(np.intp)
        inside = at < len(answer)
        found[order[part[inside]]] = answer[at[inside]]
    return found


def words_of(frames: Frames) -> list[tuple[int, NDArray[np.uint64]]]:
    """(number of the first word, words) of the bitmap with the bits of these frames, in runs of words."""
    frames = np.unique(frames)
    words = (frames >> _WORD).astype(np.int64)
    found = []
    for part in np.split(np.arange(len(words)), np.flatnonzero(np.diff(words) > 1) + 1) if len(words) else ():
        first = int(words[part[0]])
        bits = np.zeros(int(words[part[-1]]) - first + 1, "<u8")
        np.bitwise_or.at(bits, words[part] - first, np.uint64(1) << (frames[part] & _BITS))
        found.append((first, bits))
    return found
