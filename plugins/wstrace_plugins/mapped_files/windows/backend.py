"""Mapped files on Windows: VirtualQueryEx gives the allocations, GetMappedFileNameW the files behind them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from wstrace.batch import Dictionary
from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.mapped_files.spaces import MappingRow as Row
from wstrace_plugins.os.foreign import WindowsApi
from wstrace_plugins.os.pe import Pe
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.memory import Memory, columns
from wstrace_plugins.os.windows.paths import openable

_HEADER_BYTES = 4096


def listing(pid: int, strings: Dictionary, api: WindowsApi = winapi) -> Any:
    """The present mappings of a process, as columns start, end, offset, file, flags; None when it has ended."""
    try:
        with processes.opened(api, pid, winapi.QUERY_RIGHTS) as handle:
            allocations = list(Memory(api, handle).allocations())
    except TargetExited:
        return None
    return columns(allocations, strings) if allocations else None


def build_id(row: Row, path: str, api: WindowsApi = winapi) -> str:
    """The build-id of the image with that path at a row; "" for a row that is no image.

    Only the page of the headers is read from the process, which its loader has read before. It shows whether the file
    at that path is still the one that was loaded. If so, the id is the GUID and age of its PDB, else its time stamp and
    size. When the process has ended, the id is that of the file now, so that no file which has its path later is
    believed, be it an update, or one of another volume that was given the drive letter.
    """
    if row.offset:
        return ""
    try:
        with processes.opened(api, row.pid, winapi.QUERY_RIGHTS) as handle:
            loaded = Pe(partial(_read_memory, api, handle, row.start)).stamp_id
    except ValueError:
        return ""
    except Unavailable:
        loaded = ""
    try:
        with Path(openable(path)).open("rb") as file:
            image = Pe(partial(_read_file, file))
            if image.stamp_id == loaded or not loaded:
                return image.build_id
    except (OSError, ValueError):
        pass
    return loaded


def _read_memory(api: WindowsApi, handle: int, base: int, offset: int, size: int) -> bytes:
    """Bytes of the headers of an image in a process. Raises ValueError."""
    if not 0 <= offset <= _HEADER_BYTES - size:
        raise ValueError("beyond the headers")
    buffer = np.zeros(size, "u1")
    if not api.ReadProcessMemory(handle, base + offset, buffer.ctypes.data, size, None):
        raise ValueError("not readable")
    return buffer.tobytes()


def _read_file(file: BinaryIO, offset: int, size: int) -> bytes:
    """Exactly that many bytes of a file. Raises ValueError."""
    file.seek(offset)
    found = file.read(size)
    if len(found) != size:
        raise ValueError("cut off")
    return found


def mapped_file(address: int, pid: int | None = None, api: WindowsApi = winapi) -> str | None:
    r"""The path of the file mapped at an address, with its drive letter or as `\\server\share\file`; None without one.

    Raises TargetExited: the process has ended; Unavailable: access is denied.
    """
    with processes.opened(api, os.getpid() if pid is None else pid, winapi.QUERY_RIGHTS) as handle:
        return Memory(api, handle).file(address) or None
