"""What stands where no Python stacks are captured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace.batch import Batch
    from wstrace_page_faults.linux.python_stacks.rows import StackRows
    from wstrace_page_faults.linux.rings import Ring


class NoStacks:
    """Stands where no Python stacks are captured: its methods do nothing. PythonStacks says what they are for."""

    @property
    def fds(self) -> Sequence[int]:
        """Descriptors that are readable when there is something to look at."""
        return ()

    def join(self, ring: Ring) -> StackRows | None:
        """Lets the programs write rows into a fault ring; returns what pairs them with the samples."""

    def attach(self, event: int, kind: str) -> None:
        """Hangs the program on an event of that kind, before it counts. Threads inherit it with the event."""

    def expect(self, pid: int) -> None:
        """Prepares for a launched process, before its execve()."""

    def look(self, pid: int) -> bool:
        """Looks which CPython the process runs; False while its program has still to map it."""
        return True

    def look_at_processes(self, wait: float) -> float:
        """Looks at new processes; returns the seconds until the next look, at most `wait`."""
        return wait

    def new_sites(self) -> Iterable[Batch]:
        """The call sites of the stacks that came since the last call. Call it after the fault rings were read."""
        return ()

    def saw(self, batch: Batch) -> None:
        """Learns from what happened to processes and their mappings, in order of time."""

    def with_stacks(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The columns of faults with those of their stacks."""
        return columns

    def close(self) -> None:
        """Closes programs, maps and events."""

    def after_fork_in_child(self) -> None:
        """In a forked child: closes the copied descriptors."""
