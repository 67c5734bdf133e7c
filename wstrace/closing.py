"""Closing: what a `with` statement closes."""

from __future__ import annotations

from typing import Self


class Closing:
    """A context manager of itself: the end of the block calls close()."""

    def close(self) -> None:
        """Gives back what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
