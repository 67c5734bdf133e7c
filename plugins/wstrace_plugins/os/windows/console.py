"""Handles the end of a console on Windows: its window is closed, the user logs off, the machine is shut down.

Ctrl-C and Ctrl-Break are signals in Python (SIGINT, SIGBREAK); these three events are not. Log-off and shutdown are
reported only to services and to programs without user32.dll, so these events may never arrive.
Source: Microsoft Learn, SetConsoleCtrlHandler, HandlerRoutine (wincon.h).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows.interface import WindowsApi

CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT = 2, 5, 6
#: Windows ends the process when the handler returns, or after 5 s.
HELD_SECONDS = 4.5
#: BOOL HandlerRoutine(DWORD). Other systems have no WINFUNCTYPE, and only tests call it there.
_HandlerRoutine = getattr(ctypes, "WINFUNCTYPE", ctypes.CFUNCTYPE)(ctypes.c_int32, ctypes.c_uint32)


@contextmanager
def held_close(api: WindowsApi, ask: Callable[[], None]) -> Iterator[None]:
    """A context in which the closing of the console calls ask(), and waits for the context's end for at most 4.5 s.

    Args:
        api: wstrace_plugins.os.windows.api or a stand-in.
        ask: requests the end of the work inside the context, without waiting for it; called on another thread.

    Raises:
        Unavailable: the system refuses the handler.
    """
    left = threading.Event()

    def handler(event: int) -> int:
        if event not in (CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT):
            return 0
        ask()
        left.wait(HELD_SECONDS)
        return 1

    routine = _HandlerRoutine(handler)
    address = ctypes.cast(routine, ctypes.c_void_p).value
    if not api.SetConsoleCtrlHandler(address, 1):
        raise winapi.failed("SetConsoleCtrlHandler", api.GetLastError())
    try:
        yield
    finally:
        left.set()  # before the removal: the system locks the list of handlers while it calls one
        api.SetConsoleCtrlHandler(address, 0)
