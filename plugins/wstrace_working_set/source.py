"""The source `working_set`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from wstrace.batch import Batch
from wstrace.interfaces import Context, Source
from wstrace.schema import ADDRESS_SPACE, RESIDENT_PAGES, Schema


class WorkingSetSource(Source):
    """Resident pages of the target, once or every interval."""

    name: ClassVar[str] = "working_set"
    streams: ClassVar[tuple[Schema, ...]] = (RESIDENT_PAGES, ADDRESS_SPACE)

    def start(self, context: Context) -> None:
        """Arms."""

    def drain(self, timeout: float) -> Iterable[Batch]:
        """Nothing yet."""
        return ()

    def stop(self) -> Iterable[Batch]:
        """Nothing yet."""
        return ()
