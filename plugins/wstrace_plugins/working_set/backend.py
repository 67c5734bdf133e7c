"""What working sets need from the system: the Protocols that `linux/backend.py` and `windows/backend.py` implement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, cast

from wstrace.batch import Dictionary
from wstrace.errors import Unavailable
from wstrace.interfaces import Context, Level

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace_plugins.working_set.file_heat import FileHeat
    from wstrace_plugins.working_set.watching import Condition, Watched

    Columns = dict[str, NDArray[Any]]


class Totals(NamedTuple):
    """What the system counts for a process, in bytes; None when it does not say.

    Linux: VmRSS, VmPTE and HugetlbPages (which VmRSS leaves out). Windows: WorkingSetSize; page tables where it lists
    any.
    """

    total: int | None = None
    page_tables: int | None = None
    large: int | None = None


class Accounted(NamedTuple):
    """What the system accounts to a process, in bytes; None where it does not say.

    private: what no other process has. large: large pages, which no resident set includes. pss: private pages, and of
    each page that others have too its part. ended: it has ended, so that there is nothing to say. resident: its
    resident set, of the same moment as the others.
    """

    private: int | None = None
    large: int | None = None
    pss: int | None = None
    ended: bool = False
    resident: int | None = None


class Space(Protocol):
    """An opened process.

    The constructor raises TargetExited when the process has ended, Unavailable when it is refused or has no address
    space.
    """

    pid: int

    @property
    def name(self) -> str:
        """The process's name."""

    @property
    def page_size(self) -> int:
        """Bytes of a page."""

    def mappings(self, strings: Dictionary) -> Columns:
        """The columns start, end, offset, file, dev, ino, flags of schema.ADDRESS_SPACE, sorted by start.

        A column that the system cannot fill is absent.
        """

    def runs(self, mappings: Columns, *, shares: bool = False) -> Columns:
        """Runs of adjacent pages with equal attributes, sorted by start, which never cross a mapping's border.

        PAGE_WRITE means that the mapping may be written, PAGE_COPY_ON_WRITE that the next write makes a copy (both may
        be set), PAGE_SHARED that another process has the page now (so their sum is the total Shared), PAGE_EXCLUSIVE
        that no other has. A page that the system does not count as resident (schema.NOT_RESIDENT: zero page, swapped,
        guard, large) has its flag. Pages that are in no count of the system (vvar) have no run.

        Args:
            shares: also determine exact share counts.

        Returns:
            The columns start u64, pages u32, flags u16, shares u8 (absent where not known) and row u32 (index into
            mappings).

        Raises:
            TargetExited: the process ended or executed another program meanwhile.
            Unavailable: share counts need a right that is missing.
        """

    def totals(self) -> Totals:
        """The system's own counts, None where it has none."""

    def empty(self, mappings: Columns, runs: Columns) -> None:
        """Asks the system to take every page out of memory, by a way that cannot change the target's data.

        Raises:
            Unavailable: it refuses.
        """

    def why_stayed(self, mappings: Columns, runs: Columns) -> tuple[NDArray[Any], tuple[str, ...]]:
        """The reason why each run is still in memory: codes u8, shape (n,), and their texts."""

    def owned(self) -> bool:
        """True when the process belongs to the calling user."""

    def close(self) -> None:
        """Closes the handles."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class HeldSpace(Space, Protocol):
    """An address space that outlives its process for as long as its keeper keeps it."""

    def look(self) -> bool:
        """True while it is the process's address space, False after an execve. Raises TargetExited."""


class KeeperFailed(Unavailable):
    """A keeper could not be made, or has ended, where the system has keepers."""


class Keeper(Protocol):
    """Keeps the address space of one process beyond its end."""

    def hold(self, pid: int) -> HeldSpace:
        """Holds the process's current address space, and releases the one held before.

        Raises:
            TargetExited: the process has ended.
            Unavailable: it belongs to another user.
        """

    @property
    def ended(self) -> bool:
        """Whether it was ended by others, and keeps nothing."""

    def close(self) -> None:
        """Releases it; may be called again."""


class Uses(NamedTuple):
    """The mappings of a process: their names, kinds (schema.KINDS), and bytes referenced and resident, shape (n,)."""

    names: list[str]
    kind: NDArray[Any]
    used: NDArray[Any]
    resident: NDArray[Any]


class Backend(Protocol):
    """The module that talks to the operating system."""

    def probe(self) -> Level:
        """The level that this machine gives, tried on the calling process."""

    def probe_keeper(self) -> Level:
        """full, or none with the reason; tried on the calling process."""

    def Space(self, pid: int) -> Space_:  # noqa: N802 - a class of the module
        """Opens a process. Raises TargetExited, Unavailable."""

    def make_keeper(self) -> Keeper:
        """A keeper. Raises Unavailable where the system has none; the message says what lifts it."""

    def clear_referenced(self, pid: int) -> Callable[[], Uses]:
        """Takes away the bit of each page of a process that the processor sets when the page is used.

        Returns:
            What reads what has been used since. It raises TargetExited, also when another program was executed.

        Raises:
            TargetExited, Unavailable: nothing was cleared.
        """

    def descendants(self, pid: int) -> list[int]:
        """Its current children, and theirs."""

    def file_heat(self, path: str, pids: Sequence[int] = ()) -> FileHeat:
        """What of a file is in memory of these processes, or of all that map it, and in the page cache.

        Raises:
            UsageError: it is no file that can be read.
            TargetExited, Unavailable: one of these processes cannot be read, or the system does not tell.
        """

    def listed(self) -> Iterator[tuple[int, str, str, int]]:
        """(pid, name, user, resident bytes) of every process; user is "" where it is not readable."""

    def accounted(self, pid: int) -> Accounted:
        """What the system accounts to a process; None in each place where it refuses."""

    def parents(self) -> dict[int, int]:
        """pid -> its parent's pid, of every process."""

    def arguments(self, pid: int) -> tuple[str, ...]:
        """A process's command line, or the title that it gave itself; () where the system does not say."""

    def distinct(self, pids: Sequence[int]) -> int:
        """Bytes resident in these processes together, each page once. Raises Unavailable where that is not told."""

    def watched_cgroups(
        self, patterns: Sequence[str], of: Context, conditions: Sequence[Condition], pause: float
    ) -> Sequence[Watched]:
        """The cgroups of these paths or globs; without any, the traced ones, or those that the targets are in.

        For pause see Watched.

        Raises:
            Unavailable: there are none on this system, or their memory may not be read, or none tells of it.
        """

    def faults(self) -> tuple[int, int | None]:
        """(minor, major) faults of the calling process so far, by its own accounting."""


Space_ = Space


def backend() -> Backend:
    """The running system's backend. Raises Unavailable where there is none."""
    import wstrace_plugins.os

    return cast(Backend, wstrace_plugins.os.backend("wstrace_plugins.working_set"))
