"""Which pages of a file are in the page cache, and which ones processes have mapped and in memory, on Linux.

mincore(2) says which pages of a mapping are in the page cache; one that is never touched brings nothing in.
Since Linux 5.2 it answers only for a file that the caller owns or may write, and else says `all`.

Source: mincore(2); Linux mm/mincore.c can_do_mincore().
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence

import numpy as np

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable, UsageError
from wstrace.schema import NOT_RESIDENT, PAGE_FILE
from wstrace_plugins.os.foreign import Foreign
from wstrace_plugins.os.intervals import Ranges, n_bytes, union
from wstrace_plugins.os.linux import libc
from wstrace_plugins.os.linux.named_file import open_named
from wstrace_plugins.working_set.file_heat import FileHeat, Holder, parts_of
from wstrace_plugins.working_set.linux.space import Space

_NONE: Ranges = np.empty(0, "<u8"), np.empty(0, "<u8")
_CHUNK = 1 << 30  # bytes of a file that one call is about; it takes 8 ms

_mincore = Foreign(None, "mincore", ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def file_heat(path: str, pids: Iterable[int], *, chosen: bool) -> FileHeat:
    """What of a file is in memory of those of these processes that map it, and in the page cache.

    Raises UsageError: it is no file that can be read; TargetExited, Unavailable: one that was `chosen` cannot be read.
    """
    try:
        fd = open_named(path)
    except OSError as error:
        raise UsageError(f"cannot open {path}: {error.strerror}" if error.strerror else str(error)) from None
    try:
        status = os.fstat(fd)
        cached = cached_runs(fd, status)
    finally:
        os.close(fd)
    real, refused = os.path.realpath(path), 0
    found: list[tuple[Holder, Ranges, Ranges]] = []
    for pid in pids:
        try:
            holder = _holder(pid, real, status)
        except Unavailable as error:
            if chosen:
                raise
            refused += not isinstance(error, TargetExited)
            continue
        if holder is not None:
            found.append(holder)
    mapped, resident = (_together(several, status.st_size) for several in ([one[1] for one in found],
                                                                          [one[2] for one in found]))  # fmt: skip
    known, why = (None, cached) if isinstance(cached, str) else (cached, "")
    holders = [one[0] for one in found]
    return FileHeat(real, status.st_size, holders, mapped, resident, known, why, refused, parts_of(real))


def _together(several: Sequence[Ranges], size: int) -> Ranges:
    """What any of several ranges covers, up to the end of the file."""
    start, end = union(*(np.concatenate(column) for column in zip(_NONE, *several, strict=True)))
    keep = start < size  # a page may end after the file does
    return start[keep], np.minimum(end[keep], np.uint64(size))


def _holder(pid: int, path: str, status: os.stat_result) -> tuple[Holder, Ranges, Ranges] | None:
    """A process that maps the file, with what it maps and has; None if it does not. Raises Unavailable."""
    strings = Dictionary()
    with Space(pid) as space:
        mappings = space.mappings(strings)
        # by inode and device, or path: a layered file system has another device
        named = (mappings["dev"] == np.uint64(status.st_dev)) | (mappings["file"] == strings.code(path))
        rows = (mappings["ino"] == np.uint64(status.st_ino)) & named
        if not rows.any():
            return None
        runs = space.runs(mappings)
        base = mappings["offset"] - mappings["start"]  # wraps around, as the sum below does
        mapped = union((base + mappings["start"])[rows], (base + mappings["end"])[rows])
        ours = rows[runs["row"]] & ((runs["flags"] & NOT_RESIDENT) == 0)
        own = ours & ((runs["flags"] & PAGE_FILE) == 0)
        ours &= ~own
        start = runs["start"] + base[runs["row"]]
        end = start + runs["pages"].astype("<u8") * np.uint64(space.page_size)
        copied = int(runs["pages"][own].sum(dtype=np.int64)) * space.page_size
        resident = union(start[ours], end[ours])
        return Holder(pid, space.name, n_bytes(mapped), n_bytes(resident), copied), mapped, resident


def cached_runs(fd: int, status: os.stat_result) -> Ranges | str:
    """The byte ranges of an open regular file in the page cache; or why they are not known."""
    if not (os.geteuid() in (0, status.st_uid) or os.access(f"/proc/self/fd/{fd}", os.W_OK)):
        return "the kernel says which pages are in the page cache only of a file that one owns or may write"
    found: list[Ranges] = []
    for begin in range(0, status.st_size, _CHUNK):
        length = min(_CHUNK, status.st_size - begin)
        try:
            mapping = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=begin)
        except (OSError, ValueError) as error:  # a file of sysfs; one that was cut meanwhile (ValueError)
            why = "it became shorter meanwhile" if isinstance(error, ValueError) else error.strerror
            return f"what of the file is in the page cache is not known: it cannot be mapped: {why}"
        with mapping as mapped:
            here = np.frombuffer(mapped, "u1")
            there = np.zeros(-(-length // mmap.PAGESIZE), "u1")
            refused = _mincore(here.ctypes.data, length, there.ctypes.data)
            del here  # it keeps the mapping open
        if refused:
            return f"mincore: {libc.last_error().strerror}"
        edges = begin + np.flatnonzero(np.diff((there & 1).astype("i1"), prepend=0, append=0)) * mmap.PAGESIZE
        found.append((edges[::2].astype("<u8"), edges[1::2].astype("<u8")))
    return _together(found, status.st_size)
