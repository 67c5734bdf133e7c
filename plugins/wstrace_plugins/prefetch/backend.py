"""What prefetching needs from the system: the Protocol that `linux/backend.py` implements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol, cast

from wstrace.errors import Unavailable
from wstrace_plugins.prefetch.start_list import File


class Backend(Protocol):
    """A system that can read files ahead."""

    def open_file(self, path: bytes) -> int:
        """A descriptor, for reading, of the regular file with this absolute name in which no symbolic link stands.

        Raises:
            NotRegular: it is something else, which was not opened.
            OSError: it cannot be opened; ELOOP: a part of the name is a symbolic link.
        """

    def stamp(self, fd: int, path: bytes) -> File:
        """What an open regular file is now: size, time and build-id. Where that stands is read, and no more."""

    def is_inode(self, fd: int, dev: int, ino: int) -> bool:
        """Whether an open file is the one with the device and inode that a trace tells."""

    def read_ahead(self, fd: int, offset: int, length: int) -> None:
        """Begins to read a range into the page cache, and does not wait for it. Raises OSError."""

    def wait_for(self, fd: int, offset: int, length: int) -> None:
        """Returns when a range is in the page cache, or where the system cannot wait for it."""

    def beside(self, work: Callable[[], None]) -> None:
        """Lets an orphan do a piece of work, and returns at once; the first of all processes does it itself.

        The orphan has no descriptor of ours but stderr, and ends within a minute.
        """

    def load(self) -> float:
        """How many threads ran or waited for a processor or a disk in the last minute, on average."""

    def find(self, command: Sequence[str]) -> str:
        """The path of a command's program. Raises CommandNotFound or CannotExecute."""

    def become(self, path: str, command: Sequence[str]) -> NoReturn:
        """Executes a command in place of this process. Raises CommandNotFound or CannotExecute."""


class NotRegular(Exception):  # noqa: N818 - what the file is
    """A name is that of a directory, a device, a FIFO ..."""


def backend() -> Backend:
    """The running system's backend. Raises Unavailable where there is none."""
    import wstrace_plugins.os

    try:
        return cast(Backend, wstrace_plugins.os.backend("wstrace_plugins.prefetch"))
    except Unavailable:
        raise Unavailable("wstrace prefetch reads files ahead on Linux only", "make and apply the list there") from None
