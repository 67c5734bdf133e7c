"""What working sets owe to the system: the Protocols that `linux/backend.py` and `windows/backend.py` keep."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from numpy.typing import NDArray

from wstrace.batch import Dictionary
from wstrace.interfaces import Level

if TYPE_CHECKING:
    from wstrace_working_set.working_set import Totals

Columns = dict[str, NDArray[Any]]


class Space(Protocol):
    """An opened process.

    Making one raises TargetExited when the process is gone, Unavailable when it is refused or has no address space.
    """

    pid: int

    @property
    def name(self) -> str:
        """Of the process."""

    @property
    def page_size(self) -> int:
        """Bytes of a page."""

    def mappings(self, strings: Dictionary) -> Columns:
        """The columns start, end, offset, file, dev, ino, flags of schema.ADDRESS_SPACE, sorted by start.

        A column that the system cannot fill is absent.
        """

    def runs(self, mappings: Columns, *, shares: bool = False) -> Columns:
        """Runs of adjacent pages with equal attributes that never cross a mapping's border, sorted by start.

        PAGE_WRITE says that the mapping may be written, PAGE_COPY_ON_WRITE that the next write makes a copy (both may
        stand), PAGE_SHARED that another process has the page now (so that its sum is the total Shared), PAGE_EXCLUSIVE
        that none has. A page that the system does not count as resident (schema.NOT_RESIDENT: zero page, swapped,
        guard, large) has its flag; what no count of the system holds (vvar) has no run.

        Args:
            shares: exact share counts too.

        Returns:
            The columns start u64, pages u32, flags u16, shares u8 (absent where not known) and row u32 (index into
            mappings).

        Raises:
            TargetExited: the process ended or executed another program meanwhile.
            Unavailable: share counts need a right that is missing.
        """

    def totals(self) -> Totals:
        """What the system itself counts, None where it does not."""

    def empty(self, mappings: Columns, runs: Columns) -> None:
        """Asks the system to take every page out, and nothing that could change the target's data.

        Raises:
            Unavailable: it refuses.
        """

    def why_stayed(self, mappings: Columns, runs: Columns) -> tuple[NDArray[Any], tuple[str, ...]]:
        """A reason for each run that is still there: codes u8, shape (n,), and their texts."""

    def owned(self) -> bool:
        """It belongs to the calling user."""

    def close(self) -> None:
        """Gives it up."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class HeldSpace(Space, Protocol):
    """An address space that outlives its process, as long as its keeper keeps it."""

    def look(self) -> bool:
        """Whether it is still the process's: False after an execve. Raises TargetExited."""


class Keeper(Protocol):
    """What keeps the address space of one process over its end."""

    def hold(self, pid: int) -> HeldSpace:
        """The address space that the process has now; the one held before is let go.

        Raises:
            TargetExited: the process is gone.
            Unavailable: it belongs to someone else.
        """

    def close(self) -> None:
        """Lets it go; again is no error."""


class Backend(Protocol):
    """The module that talks to the system."""

    def probe(self) -> Level:
        """The level that this machine gives, tried on the calling process."""

    def probe_keeper(self) -> Level:
        """full, or none with the reason: tried on the calling process."""

    def Space(self, pid: int) -> Space_:  # noqa: N802 - a class of the module
        """An opened process. Raises TargetExited, Unavailable."""

    def make_keeper(self) -> Keeper:
        """A keeper. Raises Unavailable where the system has no such thing, and says what lifts it."""

    def descendants(self, pid: int) -> list[int]:
        """Its children, and theirs, now."""

    def listed(self) -> Iterator[tuple[int, str, str, int]]:
        """(pid, name, user, resident bytes) of every process; user is "" where it may not be told."""

    def private_and_large(self, pid: int) -> tuple[int | None, int | None]:
        """Bytes that no other process has, and bytes of large pages; None where the system does not tell or refuses."""

    def faults(self) -> tuple[int, int | None]:
        """(minor, major) faults of the calling process so far, by its own accounting."""


Space_ = Space


def backend() -> Backend:
    """The running system's. Raises Unavailable where there is none."""
    import wstrace_os

    return cast(Backend, wstrace_os.backend("wstrace_working_set"))


if TYPE_CHECKING:  # that both keep the Protocol; in a function, for mypy must know all classes by then
    from wstrace_working_set.linux import backend as linux
    from wstrace_working_set.windows import backend as windows

    def _kept(_: Backend) -> None: ...

    def _both() -> None:
        _kept(linux)
        _kept(windows)
