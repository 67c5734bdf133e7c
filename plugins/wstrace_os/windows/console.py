"""The end of a console on Windows: its window is closed, the user logs off, the machine is shut down.

Ctrl-C and Ctrl-Break are signals of the C runtime and of Python (SIGINT, SIGBREAK); these three have no signal there.
Log-off and shut-down are told to services and to programs without user32.dll only, so they may never come.
Source: Microsoft Learn, SetConsoleCtrlHandler, HandlerRoutine (wincon.h).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wstrace_os.windows import api as winapi
from wstrace_os.windows.interface import WindowsApi

CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT = 2, 5, 6
#: Windows ends the process when the handler returns, and after 5 s whatever it does
HELD_SECONDS = 4.5
#: BOOL HandlerRoutine(DWORD); other systems have no WINFUNCTYPE, and nothing that calls it but tests
_HandlerRoutine = getattr(ctypes, "WINFUNCTYPE", ctypes.CFUNCTYPE)(ctypes.c_int32, ctypes.c_uint32)


@contextmanager
def held_close(api: WindowsApi, ask: Callable[[], None]) -> Iterator[None]:
    """While entered, a close calls ask() on a thread of the system's and is held until the exit, 4.5 s at most.

    Args:
        api: wstrace_os.windows.api or a stand-in.
        ask: asks for the end of what is under way; must not wait for it.

    Raises:
        Unavailable: the system takes no handler.
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
        left.set()  # first: the system holds the list of handlers while it calls one
        api.SetConsoleCtrlHandler(address, 0)
