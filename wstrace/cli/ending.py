"""How signals end a trace of `run` or `attach`: noted while it starts, counted while it runs."""

from __future__ import annotations

import signal

from wstrace.bus import STOP_SECONDS
from wstrace.cli.signals import Interrupted


class Ending:
    """Whether the end of the trace was requested: by `needed` interrupts."""

    def __init__(self, needed: int) -> None:
        self.needed, self.interrupts = needed, 0
        self.starting = True
        self.early = 0  # the number of the signal that arrived while the session was starting

    @property
    def requested(self) -> bool:
        """Whether the trace is to end now."""
        return self.interrupts >= self.needed

    def arrive_early(self, number: int) -> None:
        """Notes a signal during the start, and breaks off a start that still hangs in a plugin STOP_SECONDS later.

        An error raised at once could be raised anywhere: between the creation of a file and the line that notes it, or
        when the command runs already. Windows has no such timer.
        """
        if not self.early and not alarm_in(STOP_SECONDS):
            raise Interrupted(number)
        self.early = self.early or number

    def check(self) -> None:
        """Raises Interrupted when a signal has arrived during the start."""
        if self.early:
            raise Interrupted(self.early)

    def started(self) -> None:
        """Ends the start; a signal that came too late to be seen by check() is delivered now."""
        self.starting = False
        if self.early:
            signal.raise_signal(self.early)


def alarm_in(seconds: float) -> bool:
    """Makes the system send SIGALRM in so many seconds (0: never); returns False on Windows, which cannot."""
    set_timer = getattr(signal, "setitimer", None)
    if set_timer is not None:
        set_timer(getattr(signal, "ITIMER_REAL"), seconds)  # noqa: B009  Windows lacks it
    return set_timer is not None
