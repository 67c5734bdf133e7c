"""Input: the bytes of one part of a trace, in a local file or in an object store."""

from __future__ import annotations

import abc
from typing import Any

from numpy.typing import NDArray


class Input(abc.ABC):
    """Bytes that are read at offsets; for one thread at a time.

    Attributes:
        path: the path or URL, without credentials.
        size: bytes.
    """

    path: str
    size: int

    @abc.abstractmethod
    def read(self, at: int, n: int) -> memoryview:
        """n bytes at an offset, fewer at the end of the file; valid until the next read."""

    @abc.abstractmethod
    def ahead(self, offsets: NDArray[Any], lengths: NDArray[Any]) -> Input:
        """An input of the same bytes for ranges that will be read in this order, ascending."""

    @abc.abstractmethod
    def for_thread(self) -> Input:
        """An input of the same bytes for another thread, which closes it."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises TraceFileError when the bytes are no longer those that were opened, where that can be known."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the file."""
