"""What write watch needs from the system: the Protocols that `linux/backend.py` and `windows/backend.py` implement."""

from __future__ import annotations

from typing import Any, Protocol, cast

from numpy.typing import NDArray

from wstrace.batch import Dictionary
from wstrace.interfaces import Level


class Watch(Protocol):
    """A watch of the calling process."""

    @property
    def page_size(self) -> int:
        """The granularity in bytes."""

    def written(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Runs of written pages in everything watched: addresses u64 and page counts u32, sorted, shape (n,) each.

        The pages count as not written from now on; no write in between is lost.

        Raises:
            Unavailable: this is a forked child, or the memory was mapped anew.
        """

    def close(self) -> None:
        """Ends all watching."""

    def after_fork_in_child(self) -> None:
        """In a forked child: closes the copied handles."""


class OwnWatch(Watch, Protocol):
    """A watch of the calling process, which covers no memory at first.

    The constructor proves that it works (a written page is seen, its neighbour is not), or raises Unavailable.
    """

    def add(self, start: int, end: int) -> None:
        """Starts to watch these whole pages, with nothing written yet; called once.

        Raises:
            Unavailable: they are watched already, are not mapped, or cannot be watched on this system.
        """

    def add_writable(self) -> int:
        """Watches all writable memory, present and future; returns the number of bytes watched now.

        Raises:
            Unavailable: the system can watch only regions that were allocated for it.
        """

    def written(self, *, reset: bool = True) -> tuple[NDArray[Any], NDArray[Any]]:
        """As Watch.written(); without reset the pages go on counting as written."""

    def ranges(self, *, reset: bool = True) -> tuple[NDArray[Any], NDArray[Any]]:
        """As written(), but the addresses where the runs begin and end, u64, sorted, shape (n,) each."""

    def reset(self) -> None:
        """Marks everything as not written; only called where add_writable() works."""


class Backend(Protocol):
    """The module that talks to the operating system."""

    def probe(self) -> Level:
        """The level on this machine, tried on a page of its own."""

    def allocate(self, nbytes: int) -> Any:
        """Fresh zeroed private memory, page-aligned, that a Watch can cover.

        Returns an object with a writable buffer of at least nbytes, which frees the memory with its last reference.
        """

    def Watcher(self) -> OwnWatch:  # noqa: N802 - a class of the module
        """A watch of the calling process. Raises Unavailable."""

    def open_watcher(self) -> Watch:
        """A watch of all memory of the calling process that this system can watch. Raises Unavailable."""

    def mappings(self, strings: Dictionary) -> dict[str, NDArray[Any]]:
        """The columns start, end, offset, file, dev, ino, flags of schema.ADDRESS_SPACE, sorted by start."""


def backend() -> Backend:
    """The running system's backend. Raises Unavailable where there is none."""
    import wstrace_plugins.os

    return cast(Backend, wstrace_plugins.os.backend("wstrace_plugins.write_watch"))
