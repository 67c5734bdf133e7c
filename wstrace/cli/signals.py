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


def told(stopped: BaseException | None) -> str:
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
        stopped.args = (f"{told(stopped)} before the trace began: nothing was recorded",)
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
