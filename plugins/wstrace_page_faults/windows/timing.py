"""What keeps the drain on time while a trace runs: the interpreter's switch interval and the system's timer."""

from __future__ import annotations

import sys
from contextlib import suppress

from wstrace.errors import Unavailable
from wstrace_os.windows import process as processes
from wstrace_os.windows.interface import WindowsApi

_SWITCH_SECONDS = 0.0005  # Python's own 5 ms is what a fault storm needs to overflow a buffer several times
_FIRST_FINE_TIMER_BUILD = 17134  # Windows 10 1803: from there on time.sleep() is fine by itself


class Timing:
    """From start() to stop() of a trace.

    Args:
        api: wstrace_os.windows.api or a stand-in.
        self_traced: the program that is traced is this one, whose switch interval is its own business.
    """

    def __init__(self, api: WindowsApi, *, self_traced: bool) -> None:
        self._api, self._self_traced = api, self_traced
        self._interval = 0.0
        self._period = False

    def start(self) -> None:
        """Lets threads change every 0.5 ms, and old Windows wake sleepers every ms."""
        if not self._self_traced:
            self._interval = sys.getswitchinterval()
            sys.setswitchinterval(min(self._interval, _SWITCH_SECONDS))
        if 0 < processes.build(self._api) < _FIRST_FINE_TIMER_BUILD:
            with suppress(Unavailable):
                self._period = self._api.timeBeginPeriod(1) == 0

    def stop(self) -> None:
        """As it was before."""
        if self._interval:
            sys.setswitchinterval(self._interval)
            self._interval = 0.0
        if self._period:
            self._api.timeEndPeriod(1)
            self._period = False
