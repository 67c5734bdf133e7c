"""What the sources of resident pages share: the snapshots of processes, and the counts of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from wstrace.errors import Unavailable
from wstrace.interfaces import Context, Level, Source
from wstrace.schema import ADDRESS_SPACE, RESIDENT_PAGES, Schema
from wstrace_plugins.working_set.backend import backend

if TYPE_CHECKING:
    from wstrace_plugins.working_set.working_set import WorkingSet


class SnapshotSource(Source):
    """A source of snapshots."""

    streams: ClassVar[tuple[Schema, ...]] = (RESIDENT_PAGES, ADDRESS_SPACE)
    _context: Context

    def __init__(self) -> None:
        self._number, self._cpu_seconds = 0, 0.0  # snapshots so far, and what they took
        self._refused: dict[int, str] = {}  # why, of processes that may not be read

    @classmethod
    def probe(cls) -> Level:
        """The level that this machine gives, tried on the calling process."""
        level: Level = backend().probe()
        return level

    def _snapshots(self, pids: Iterable[int], **options: Any) -> Iterator[WorkingSet]:
        """Yields a snapshot of each process that can be read."""
        from wstrace_plugins.working_set.working_set import working_set  # not loaded for a command that ends at once

        for pid in pids:
            try:
                taken = working_set(pid, strings=self._context.strings, **options)
            except Unavailable as error:  # TargetExited: the ordinary end of a process
                if type(error) is Unavailable:
                    self._refused[pid] = error.why
                continue
            self._number += 1
            self._cpu_seconds += taken.cost_seconds
            yield taken
