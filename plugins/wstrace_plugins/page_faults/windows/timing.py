"""Timing: makes drains punctual while a trace runs, by the interpreter's switch interval and the system's timer."""

from __future__ import annotations

import sys
from contextlib import suppress

from wstrace.errors import Unavailable
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.interface import WindowsApi

_SWITCH_SECONDS = 0.0005  # in Python's default of 5 ms, a burst of faults can overflow a buffer several times
_FIRST_FINE_TIMER_BUILD = 17134  # Windows 10 1803, since which time.sleep() has a fine timer


class Timing:
    """Changes the switch interval and the timer from start() to stop().

    Args:
        api: wstrace_plugins.os.windows.api or a stand-in.
        self_traced: whether this process is traced itself, so that its switch interval must not change.
    """

    def __init__(self, api: WindowsApi, *, self_traced: bool) -> None:
        self._api, self._self_traced = api, self_traced
        self._interval = 0.0
        self._period = False

    def start(self) -> None:
        """Lets Python switch threads every 0.5 ms, and an older Windows wake sleeping threads every ms."""
        if not self._self_traced:
            self._interval = sys.getswitchinterval()
            sys.setswitchinterval(min(self._interval, _SWITCH_SECONDS))
        if 0 < processes.build(self._api) < _FIRST_FINE_TIMER_BUILD:
            with suppress(Unavailable):
                self._period = self._api.timeBeginPeriod(1) == 0

    def stop(self) -> None:
        """Restores both."""
        if self._interval:
            sys.setswitchinterval(self._interval)
            self._interval = 0.0
        if self._period:
            self._api.timeEndPeriod(1)
            self._period = False
