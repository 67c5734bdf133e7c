"""Makes what is started next run the same way each time: without ASLR; or from disk, with its files out of the cache.

Source: personality(2), ADDR_NO_RANDOMIZE (a fork and execve() pass it on); posix_fadvise(2), POSIX_FADV_DONTNEED.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from wstrace.errors import Unavailable
from wstrace_os.foreign import declare
from wstrace_os.linux.libc import last_error

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


def evict(files: Iterable[str]) -> None:
    """Takes files out of the page cache, but for pages that are dirty or that a process has mapped.

    A file that is no regular one, or may not be read, stays; nothing else in the cache is touched.
    """
    for path in files:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
