"""What the sources of resident pages share: the snapshots of processes, and the counts of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
        self._counts: dict[str, int | float] = {"snapshots": 0, "missed": 0, "pages": 0, "cpu_seconds": 0.0}
        self._refused: dict[int, str] = {}  # why, of processes that may not be read

    @classmethod
    def probe(cls) -> Level:
        """The level that this machine gives, tried on the calling process."""
        level: Level = backend().probe()
        return level

    def statistics(self) -> Mapping[str, int | float]:
        """snapshots, missed processes (they had ended, or may not be read), pages, CPU seconds ..."""
        return dict(self._counts)

    def _snapshots(self, pids: Iterable[int], **options: Any) -> Iterator[WorkingSet]:
        """Yields a snapshot of each process that can be read."""
        from wstrace_plugins.working_set.working_set import working_set  # not loaded for a command that ends at once

        for pid in pids:
            try:
                taken = working_set(pid, strings=self._context.strings, **options)
            except Unavailable as error:  # TargetExited: the ordinary end of a process
                self._counts["missed"] += 1
                if type(error) is Unavailable:
                    self._refused[pid] = error.why
                continue
            self._count(taken)
            yield taken

    def _count(self, taken: WorkingSet) -> None:
        self._counts["snapshots"] += 1
        self._counts["pages"] += taken.total_bytes // taken.page_size
        self._counts["cpu_seconds"] += taken.cost_seconds
