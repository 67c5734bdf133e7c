"""What a test brings into memory, as the system counts it for the process: read just before and just after it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, Self, cast

import wstrace_plugins.os
from wstrace.errors import Unavailable

if TYPE_CHECKING:
    from wstrace import MemoryWatch


class Backend(Protocol):
    """The figures of the calling process; `linux/backend.py` and `windows/backend.py` implement it."""

    def without_free_memory(self) -> AbstractContextManager[None]:
        """While it is entered, free memory of the process is not used again; what cannot be kept so, is not."""

    def end_with(self, parent: int) -> None:
        """Makes this process end when its parent of that pid does, or ends it if it has; does nothing where it cannot.

        It is the thread of the parent that has started this process whose end counts.
        """

    def faults(self) -> tuple[int, int | None]:
        """(all page faults, those of them from disk) so far; None where the system does not tell them apart."""

    def resident(self) -> int:
        """The resident size in bytes. Raises Unavailable."""

    def reset_peak(self) -> None:
        """Makes the present resident size the highest one. Raises Unavailable where the system cannot."""

    def peak(self) -> int:
        """The highest resident size since reset_peak(), in bytes. Raises Unavailable."""


def backend() -> Backend:
    """That of the running system. Raises Unavailable where there is none."""
    return cast(Backend, wstrace_plugins.os.backend("wstrace_plugins.pytest"))


@contextmanager
def clean_heap(system: Backend) -> Iterator[None]:
    """Within it no memory is free that earlier tests have left: what a test takes is new.

    It begins before the observer watches, to which what it does would be lines of the program.
    """
    gc.collect()
    with system.without_free_memory():
        yield


class Meter:
    """Counts from start() to stop() in the calling process, all of its threads included.

    Args:
        system: what counts. wanted: the names of figures that are judged.

    Attributes:
        figures: after stop(), name -> bytes or faults: those that can be had here.

    Raises:
        Unavailable: one of those wanted cannot be had; its text says which and why: an error of the test, never a pass.
    """

    def __init__(self, system: Backend, wanted: Collection[str]) -> None:
        self._system = system
        self._watch: MemoryWatch | None = None
        self.figures: dict[str, int] = {}

        def can(figure: str, call: Callable[[], object]) -> bool:
            try:
                call()
            except Unavailable as refused:
                if figure in wanted:
                    raise Unavailable(f"wstrace: {figure} cannot be had here: {refused.why}", refused.remedy) from None
                return False
            return True

        self._has_peak, self._has_size = can("peak", system.reset_peak), can("new", system.resident)
        can("major", self._major)
        if "written" in wanted:
            can("written", self._watch_writes)

    def _major(self) -> int:
        major = self._system.faults()[1]
        if major is None:
            raise Unavailable("this system does not tell which faults were from disk")
        return major

    def _watch_writes(self) -> None:
        import wstrace

        self._watch = wstrace.MemoryWatch()
        self._watch.written()  # so that its own pages are in memory

    def start(self) -> Self:
        """Begins to count."""
        if self._watch is not None:
            self._watch.reset()
        self._resident = self._system.resident() if self._has_size else 0
        if self._has_peak:
            self._system.reset_peak()
            self._peak = self._system.peak()
        self._faults = self._system.faults()
        return self

    def stop(self) -> None:
        """Ends it."""
        faults, major = self._system.faults()
        self.figures["faults"] = faults - self._faults[0]
        if major is not None and self._faults[1] is not None:
            self.figures["major"] = major - self._faults[1]
        if self._has_peak:
            self.figures["peak"] = self._system.peak() - self._peak
        if self._has_size:
            self.figures["new"] = max(self._system.resident() - self._resident, 0)
        if self._watch is not None:
            with self._watch as watch:
                self.figures["written"] = int(watch.written()[1].sum()) * watch.page_size
