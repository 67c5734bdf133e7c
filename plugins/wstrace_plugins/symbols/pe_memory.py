"""The sections of an image, from its headers in the process that has loaded it, where the file cannot be read.

The file may be deleted or replaced, or in a folder or on a server to which we have no access; the article's program
always reads the headers from the process. It takes one page, which the loader has touched before, and has no functions.
"""

from __future__ import annotations

import numpy as np

from wstrace.errors import Unavailable
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.interface import WindowsApi
from wstrace_plugins.os.windows.memory import Memory
from wstrace_plugins.symbols.image import Image, ImageBytes, ImageError
from wstrace_plugins.symbols.pe import read_image

_HEADER_BYTES = 4096
_MAX_ALLOCATIONS = 1 << 16


def loaded_image(path: str, pid: int, api: WindowsApi = winapi) -> Image | None:
    """What a live process has loaded from a path, with sections only; None where it cannot be read."""
    try:
        with processes.opened(api, pid, winapi.QUERY_RIGHTS) as handle:
            base = _base(Memory(api, handle), path)
            buffer = np.zeros(_HEADER_BYTES, "u1")
            if not base or not api.ReadProcessMemory(handle, base, buffer.ctypes.data, buffer.nbytes, None):
                return None
        return read_image(ImageBytes(path, buffer.tobytes()))
    except (Unavailable, ImageError):
        return None


def _base(memory: Memory, path: str) -> int:
    for _, allocation in zip(range(_MAX_ALLOCATIONS), memory.allocations(), strict=False):
        if allocation.type == winapi.MEM_IMAGE and allocation.file == path:
            return allocation.start
    return 0
