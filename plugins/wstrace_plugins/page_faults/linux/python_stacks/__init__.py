"""Python stacks at page faults: an eBPF program on the fault events walks CPython's frames, exactly and from outside.

assembler, bpf: instructions, maps and programs by bpf(2). programs: what runs in the kernel at each fault. kernel: its
structures. interpreters: which process runs which CPython. protocol: what the programs and the tracer agree on.
waiting: the programs, as soon as a CPython is there. capture: all of it, for the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wstrace.batch import Batch
    from wstrace_plugins.page_faults.linux.python_stacks.protocol import StackRows
    from wstrace_plugins.page_faults.linux.rings import Ring


class NoStacks:
    """Stands where no Python stacks are captured: its methods do nothing. WaitingStacks says what they are for."""

    @property
    def fds(self) -> Sequence[int]:
        """Descriptors that are readable when there is something to look at."""
        return ()

    def join(self, ring: Ring, rows: StackRows | None = None) -> StackRows | None:
        """Lets the programs write rows into a fault ring; returns what pairs them with the samples."""

    def attach(self, event: int, kind: str) -> None:
        """Hangs the gate on an event of that kind, before it counts. Tasks that are started inherit it."""

    def expect(self, pid: int) -> None:
        """Prepares for a launched process, before its execve()."""

    def foresee(self) -> None:
        """Prepares for the CPythons that are likely to be started: of a child nothing is known before it runs."""

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

    def rows_lost(self, kind: str) -> int:
        """The stack rows of a kind of faults that found no room in their ring."""
        return 0

    def reasons(self) -> Mapping[str, int]:
        """Why faults have no stack -> how many; those that run no Python are not counted."""
        return {}

    def statistics(self) -> Mapping[str, int]:
        """What the programs and their reader counted."""
        return {}

    def close(self) -> None:
        """Closes programs, maps and events."""

    def after_fork_in_child(self) -> None:
        """In a forked child: closes the copied descriptors."""
