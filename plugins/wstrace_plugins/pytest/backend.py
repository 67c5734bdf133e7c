"""What budgets need from the system: figures of the calling process, each a single cheap call."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, cast

import wstrace_plugins.os


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
