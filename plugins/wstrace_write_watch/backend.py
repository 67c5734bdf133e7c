"""What write watch owes to the system: the Protocols that `linux/backend.py` and `windows/backend.py` keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from numpy.typing import NDArray

from wstrace.batch import Dictionary
from wstrace.interfaces import Level
from wstrace_write_watch.agent import Agent


class Watch(Protocol):
    """A watch without any memory yet, of the calling process or of another one.

    It has proved itself when it is made (a page written is seen, its neighbour is not), or raises Unavailable.
    """

    @property
    def page_size(self) -> int:
        """The granularity in bytes."""

    def add(self, start: int, end: int) -> None:
        """Watches these whole pages, with nothing written yet.

        Raises:
            Unavailable: they are watched already, are not mapped, or cannot be watched on this system.
        """

    def add_writable(self) -> int:
        """Watches all writable memory, now and as it is mapped later; gives the bytes watched now.

        Raises:
            Unavailable: the system watches own regions only.
        """

    def remove(self, start: int, end: int) -> None:
        """Ends the watch of these pages."""

    def written(self, *, reset: bool = True) -> tuple[NDArray[Any], NDArray[Any]]:
        """Runs of written pages of everything watched: addresses u64 and numbers of pages u32, sorted, shape (n,) each.

        reset: they count as not written from now on, without losing a write in between.

        Raises:
            TargetExited: the process ended or executed another program.
            Unavailable: in a forked child, or when the memory is gone.
        """

    def close(self) -> None:
        """Ends all watching."""

    def after_fork_in_child(self) -> None:
        """In a forked child: closes the copied handles."""


class OwnWatch(Watch, Protocol):
    """A watch of the calling process."""

    def reset(self) -> None:
        """Nothing counts as written; only asked for where add_writable() works."""


class Backend(Protocol):
    """The module that talks to the system."""

    def probe(self) -> Level:
        """The level that this machine gives, tried on a page of its own."""

    def allocate(self, nbytes: int) -> Any:
        """Fresh zeroed private memory, page-aligned, that a Watch can take.

        An object with a writable buffer of at least nbytes, which frees the memory when its last reference goes.
        """

    def Watcher(self) -> OwnWatch:  # noqa: N802 - a class of the module
        """A watch of the calling process. Raises Unavailable."""

    def open_watcher(self, pid: int, agent: str = "") -> Watch:
        """A watch of the calling process or of another one, by whatever way this system has.

        agent: the socket that the other process's agent listens at, "" = the usual one.
        """

    def mappings(self, pid: int, strings: Dictionary) -> dict[str, NDArray[Any]]:
        """The columns start, end, offset, file, dev, ino, flags of schema.ADDRESS_SPACE, sorted by start."""

    def start_agent(self, path: str | None) -> Agent:
        """Lets a tracer outside of this process watch it. Raises Unavailable where the system has no way."""


def backend() -> Backend:
    """The running system's. Raises Unavailable where there is none."""
    import wstrace_os

    return cast(Backend, wstrace_os.backend("wstrace_write_watch"))


if TYPE_CHECKING:  # that both keep the Protocol
    from wstrace_write_watch.linux import backend as linux
    from wstrace_write_watch.windows import backend as windows

    _LINUX: Backend = linux
    _WINDOWS: Backend = windows
