"""Mapped files on Windows: VirtualQueryEx for what lies where, GetMappedFileNameW for the file behind it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited
from wstrace_mapped_files.epoch import Mapping as Row
from wstrace_os.windows import api as winapi
from wstrace_os.windows import process as processes
from wstrace_os.windows.interface import WindowsApi
from wstrace_os.windows.memory import Memory, columns

#: a listing asks once for each allocation of the process: some hundred calls of 1 to 2 us
LISTING_NS = 50_000_000
COMPLETE = True


def listing(pid: int, addresses: NDArray[np.uint64], strings: Dictionary, api: WindowsApi = winapi) -> Any:
    """The mappings of a process now, as columns start, end, offset, file, flags; None when it is gone."""
    try:
        handle = winapi.open_process(api, pid, winapi.QUERY_RIGHTS)
    except TargetExited:
        return None
    try:
        processes.refuse_other_width(api, handle, pid)
        allocations = list(Memory(api, handle).allocations())
    finally:
        api.CloseHandle(handle)
    return columns(allocations, strings) if allocations else None


def build_ids(rows: Sequence[Row], strings: Dictionary) -> list[str]:
    """Unknown: Windows tells none without reading the image."""
    return [""] * len(rows)


def mapped_file(address: int, pid: int | None = None, api: WindowsApi = winapi) -> str | None:
    r"""The path of the file mapped at an address, with its drive letter or as `\\server\share\file`; None without one.

    Raises:
        TargetExited: the process is gone.
        Unavailable: access is denied.
    """
    pid = os.getpid() if pid is None else pid
    handle = winapi.open_process(api, pid, winapi.QUERY_RIGHTS)
    try:
        processes.refuse_other_width(api, handle, pid)
        return Memory(api, handle).file(address) or None
    finally:
        api.CloseHandle(handle)
