"""Which pages of a file are in the page cache, and which ones processes have mapped and in memory, on Linux.

mincore(2) says which pages of a mapping are in the page cache; one that is never touched brings nothing in.
Since Linux 5.2 it answers only for a file that the caller owns or may write, and else says `all`. cachestat(2), from
Linux 6.5 on, gives the sum.

Source: mincore(2); Linux mm/mincore.c can_do_mincore(), mm/filemap.c cachestat().
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable, UsageError
from wstrace.schema import NOT_RESIDENT, PAGE_FILE
from wstrace_os.foreign import declare
from wstrace_os.linux import libc, procfs
from wstrace_working_set.file_heat import FileHeat, Holder, Ranges, parts_of
from wstrace_working_set.linux.space import Space

_CHUNK = 1 << 30  # bytes of a file that one call is asked about
_CACHESTAT = 451  # the same number on all machines

_mincore = declare(None, "mincore", ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def file_heat(path: str, pids: Sequence[int] | None = ()) -> FileHeat:
    """What of a file is in memory now; see backend.Backend."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise UsageError(f"cannot open {path}: {error.strerror}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is no regular file")
        cached, why = _cached(fd, status)
        total = None if cached is None else cached.bytes
        if cached is None and (pages := _cachestat(fd)) is not None:
            total = min(pages * mmap.PAGESIZE, status.st_size)
    finally:
        os.close(fd)
    real, holders, refused = os.path.realpath(path), [], 0
    for pid in () if pids is None else pids or procfs.processes():
        try:
            holder = _holder(pid, real, status)
        except TargetExited:
            if pids:
                raise
            continue
        except Unavailable:
            if pids:
                raise
            refused += not _kernel_thread(pid)
            continue
        if holder is not None:
            holders.append(holder)
    return FileHeat(real, status.st_size, mmap.PAGESIZE, holders, cached, total, why, refused, parts_of(real))


def _kernel_thread(pid: int) -> bool:
    with suppress(TargetExited):
        return procfs.stat(pid).kernel_thread
    return True


def _cached(fd: int, status: os.stat_result) -> tuple[Ranges | None, str]:
    """What is in the page cache, or None and why not."""
    if not status.st_size:
        return Ranges.of([]), ""
    if not (os.geteuid() in (0, status.st_uid) or os.access(f"/proc/self/fd/{fd}", os.W_OK)):
        return None, "the kernel says which pages are in the page cache only of a file that one owns or may write"
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for begin in _chunks(fd, 0, -(-status.st_size // _CHUNK)):
        length = min(_CHUNK, status.st_size - begin)
        try:
            mapping = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=begin)
        except (OSError, ValueError) as error:  # a file of sysfs; one that was cut meanwhile (ValueError)
            why = "it became shorter meanwhile" if isinstance(error, ValueError) else error.strerror
            return None, f"what of the file is in the page cache is not known: it cannot be mapped: {why}"
        with mapping as mapped:
            here = np.frombuffer(mapped, "u1")
            found = np.zeros(-(-length // mmap.PAGESIZE), "u1")
            refused = _mincore(here.ctypes.data, length, found.ctypes.data)
            del here  # it keeps the mapping open
        if refused:
            return None, f"mincore: {libc.last_error().strerror}"
        edges = np.flatnonzero(np.diff((found & 1).astype("i1"), prepend=0, append=0))
        starts.append(begin + edges[::2] * mmap.PAGESIZE)
        ends.append(np.minimum(begin + edges[1::2] * mmap.PAGESIZE, status.st_size))
    return Ranges.union(np.concatenate(starts), np.concatenate(ends)), ""


def _chunks(fd: int, first: int, end: int) -> Iterator[int]:
    """Where the chunks begin of which pages may be in the page cache, of those from `first` up to `end`.

    cachestat() passes over what is not there; mincore() asks for each page, a minute for the holes of 8 TiB.
    """
    if _cachestat(fd, first * _CHUNK, (end - first) * _CHUNK) == 0:
        return
    if end - first == 1:
        yield first * _CHUNK
        return
    middle = (first + end) // 2
    yield from _chunks(fd, first, middle)
    yield from _chunks(fd, middle, end)


def _cachestat(fd: int, begin: int = 0, length: int = 0) -> int | None:
    """Pages of a range of an open file, 0 = to its end, in the page cache; None where the kernel does not say."""
    asked, answer = np.array([begin, length], "<u8"), np.zeros(5, "<u8")
    if libc.syscall(_CACHESTAT, fd, asked.ctypes.data, answer.ctypes.data, 0):
        return None
    return int(answer[0])


def _holder(pid: int, path: str, status: os.stat_result) -> Holder | None:
    """A process that maps the file; None if it does not. Raises TargetExited, Unavailable."""
    strings = Dictionary()
    found = procfs.read_maps(pid)
    if not _rows(found.coded(strings), path, status, strings).any():
        return None
    with Space(pid) as space:
        mappings = space.mappings(strings)
        runs = space.runs(mappings)
        rows = _rows(mappings, path, status, strings)
        base = mappings["offset"] - mappings["start"]  # wraps around, as the sum below does
        mapped = Ranges.union((base + mappings["start"])[rows], (base + mappings["end"])[rows])
        ours = rows[runs["row"]] & ((runs["flags"] & NOT_RESIDENT) == 0)
        own = ours & ((runs["flags"] & PAGE_FILE) == 0)
        ours &= ~own
        start = runs["start"] + base[runs["row"]]
        end = start + runs["pages"].astype("<u8") * np.uint64(space.page_size)
        copied = int(runs["pages"][own].sum(dtype=np.int64)) * space.page_size
        return Holder(pid, space.name, mapped, Ranges.union(start[ours], end[ours]), copied)


def _rows(
    mappings: dict[str, np.ndarray[tuple[int], np.dtype[np.uint64]]],
    path: str,
    status: os.stat_result,
    strings: Dictionary,
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mask of the mappings of the file: by inode and device, or path (a layered file system has another device)."""
    code = strings.code(path)
    named = (mappings["dev"] == np.uint64(status.st_dev)) | (mappings["file"] == code)
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]] = (mappings["ino"] == np.uint64(status.st_ino)) & named
    return mask
