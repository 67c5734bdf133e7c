"""Lets the thread that looks at new processes run in time."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

_os: Any = os  # When mypy checks for Windows, the POSIX half has no types.
_NICE = -10


def hurry() -> None:
    """Lets the calling thread run before others, if that is permitted and it is not the program's main thread.

    A short Python has run its first line 5 ms after its start: with all CPUs busy, the look at it came too late for
    78 % of the faults of a series of them, and for 28 % with this. A target is not changed: another thread starts it.
    """
    if threading.current_thread() is threading.main_thread():
        return
    with contextlib.suppress(OSError):
        _os.setpriority(_os.PRIO_PROCESS, threading.get_native_id(), _NICE)
