"""What a test brings into memory, as the system counts it for the process: read just before and just after it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import wstrace_plugins.os
from wstrace.errors import Unavailable

if TYPE_CHECKING:
    from wstrace import MemoryWatch


def backend() -> Any:
    """The module of the running system's figures of the calling process. Raises Unavailable where there is none."""
    return wstrace_plugins.os.backend("wstrace_plugins.pytest")


@contextmanager
def clean_heap(system: Any) -> Iterator[None]:
    """Within it no memory is free that earlier tests have left: what a test takes is new.

    It begins before the observer watches, to which what it does would be lines of the program.
    """
    gc.collect()
    with system.without_free_memory():
        yield


class Meter:
    """Counts from start() to stop() in the calling process, all of its threads included.

    system: what counts. wanted: the names of figures that are judged. figures: after stop(), name -> bytes or faults:
    those that can be had here. Raises Unavailable: one of those wanted cannot be had; its text says which and why: an
    error of the test, never a pass.
    """

    def __init__(self, system: Any, wanted: Collection[str]) -> None:
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

    def _major(self) -> None:
        if self._system.faults()[1] is None:
            raise Unavailable("this system does not tell which faults were from disk")

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
