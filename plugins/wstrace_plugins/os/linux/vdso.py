"""The kernel's own image in every process, the vdso: read from our own memory, as no file has it.

Source: vdso(7).
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from wstrace.schema import KIND_SHIFT, KIND_VDSO
from wstrace_plugins.os.linux import procfs

_ELF = b"\x7fELF"


@functools.cache
def own_vdso() -> bytes:
    """The image, which is the same in every process of this boot; b"" where there is none."""
    maps = procfs.read_maps(os.getpid())
    kinds = maps.columns["flags"] >> KIND_SHIFT & 15
    for row in (kinds == KIND_VDSO).nonzero()[0].tolist():
        start, end = int(maps.columns["start"][row]), int(maps.columns["end"][row])
        try:
            with Path("/proc/self/mem").open("rb", buffering=0) as memory:
                memory.seek(start)
                image = memory.read(end - start)
        except (OSError, OverflowError):  # [vvar] and [vsyscall] are of this kind, too
            continue
        if image.startswith(_ELF):
            return image
    return b""
