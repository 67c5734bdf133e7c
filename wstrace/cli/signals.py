"""Signals that end a command: they are raised like Ctrl-C, so that what it had begun is undone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: What ends a process in silence where nothing handles it. Windows has only the first of them.
_ENDING = ("SIGTERM", "SIGHUP")


class Interrupted(KeyboardInterrupt):
    """A signal other than Ctrl-C that ends the command.

    Args:
        number: the number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def interruption(stopped: BaseException | None) -> str:
    """What was interrupted, where that is known, or by which signal: `interrupted by SIGTERM`."""
    if stopped is not None and stopped.args:
        return str(stopped)
    return f"interrupted by {signal.Signals(getattr(stopped, 'exit_code', 128 + signal.SIGINT) - 128).name}"


@contextmanager
def before_the_trace() -> Iterator[None]:
    """A signal that ends the block says that it came before a trace: it leaves neither a file nor a report."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.args = (f"{interruption(stopped)} before the trace began: nothing was recorded",)
        raise


@contextmanager
def raised() -> Iterator[None]:
    """In the block, the first SIGTERM or SIGHUP raises Interrupted, and later ones are ignored.

    These would break off what undoes the command. A signal that is ignored, as SIGHUP under nohup, or that the caller
    handles stays as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, _: object) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


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
        from wstrace.bus import STOP_SECONDS  # with all that a session needs

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
