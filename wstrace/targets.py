"""What is traced: a process, or a group of processes that come and go. Platforms make them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

from wstrace.trace_info import Usage


class Target(abc.ABC):
    """A traced process, made by a platform: launched (and still stopped before its first instruction) or attached."""

    pid: int
    name: str
    launched: bool
    #: called in resume() between its execve() and its first instruction, where the system can hold it there
    on_start: Callable[[], None] | None = None
    #: what wait() returned, once it has ended
    exit_code: int | None = None
    #: the name of the signal that ended it, `SIGSEGV`; "" = none, or not known
    exit_signal: str = ""

    @abc.abstractmethod
    def resume(self) -> None:
        """Lets a launched target run. Raises CommandNotFound or CannotExecute when the system refuses its command."""

    @abc.abstractmethod
    def wait(self, timeout: float) -> int | None:
        """Its exit code (128 + N for signal N; 0 when an attached one has ended), or None after timeout seconds."""

    @abc.abstractmethod
    def usage(self) -> Usage:
        """What the system accounts to it; exact for a launched target after wait() has returned its exit code."""

    def own_usage(self) -> Usage:
        """The same without its children, for a trace that leaves them out; usage() if the system cannot tell."""
        return self.usage()

    @abc.abstractmethod
    def signal(self, number: int) -> None:
        """Sends it a signal; does nothing when it has ended."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the handle. A launched target that never ran is ended; any other continues."""


class Group(abc.ABC):
    """Processes that come and go and are traced as one: those of control groups, or all. A platform makes it."""

    #: what it was chosen by, for people
    name: str

    @abc.abstractmethod
    def processes(self) -> Sequence[int]:
        """The pids of its present processes."""

    @abc.abstractmethod
    def usage(self) -> Usage:
        """What the system accounts to it: faults since the trace began, until end()."""

    def end(self) -> None:
        """The trace ends: what the system accounts to it from now on is not part of usage()."""
        return

    def close(self) -> None:
        """Closes what it holds open."""
        return
