"""Which pages of a file are in the page cache, and which ones processes have mapped and in memory, on Linux.

The page cache is asked by mincore(2).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable, UsageError
from wstrace.schema import NOT_RESIDENT, PAGE_FILE
from wstrace_plugins.os.linux import page_cache, procfs
from wstrace_plugins.os.linux.named_file import open_named
from wstrace_plugins.working_set.file_heat import FileHeat, Holder, Ranges, parts_of
from wstrace_plugins.working_set.linux.space import Space


def file_heat(path: str, pids: Sequence[int] = ()) -> FileHeat:
    """What of a file is in memory now; see backend.Backend."""
    try:
        fd = open_named(path)
    except OSError as error:
        raise UsageError(f"cannot open {path}: {error.strerror}" if error.strerror else str(error)) from None
    try:
        status = os.fstat(fd)
        found = page_cache.cached_runs(fd, status)
    finally:
        os.close(fd)
    real, holders, refused = os.path.realpath(path), [], 0
    for pid in pids or procfs.processes():
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
    cached, why = (None, found) if isinstance(found, str) else (Ranges.union(*found), "")
    return FileHeat(real, status.st_size, mmap.PAGESIZE, holders, cached, why, refused, parts_of(real))


def _kernel_thread(pid: int) -> bool:
    with suppress(TargetExited):
        return procfs.stat(pid).kernel_thread
    return True


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
