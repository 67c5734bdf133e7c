"""Makes what is started next run the same way each time: without ASLR.

Source: personality(2), ADDR_NO_RANDOMIZE (a fork and execve() pass it on).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from wstrace.errors import Unavailable
from wstrace_plugins.os.foreign import declare
from wstrace_plugins.os.linux.libc import last_error

_ADDR_NO_RANDOMIZE = 0x0040000
_ASK = 0xFFFFFFFF
_personality = declare(None, "personality", ctypes.c_int32, ctypes.c_ulong)


@contextmanager
def without_aslr() -> Iterator[None]:
    """While entered, what this process starts has its memory at the same addresses each time. Raises Unavailable."""
    before = _personality(_ASK)
    if before < 0 or _personality(before | _ADDR_NO_RANDOMIZE) < 0:
        why = f"ASLR cannot be switched off: personality(2) is refused ({last_error().strerror})"
        raise Unavailable(why, "in a container: a seccomp profile that permits personality(0x40000)")
    try:
        yield
    finally:
        _personality(before)
