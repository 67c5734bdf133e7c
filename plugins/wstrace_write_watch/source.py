"""The source `write_watch`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from wstrace.batch import Batch
from wstrace.interfaces import Context, Source
from wstrace.schema import ADDRESS_SPACE, WRITTEN_PAGES, Schema


class WriteWatchSource(Source):
    """Written pages of the target, once or every interval."""

    name: ClassVar[str] = "write_watch"
    streams: ClassVar[tuple[Schema, ...]] = (WRITTEN_PAGES, ADDRESS_SPACE)

    def start(self, context: Context) -> None:
        """Arms."""

    def drain(self, timeout: float) -> Iterable[Batch]:
        """Nothing yet."""
        return ()

    def stop(self) -> Iterable[Batch]:
        """Nothing yet."""
        return ()
