"""Memory that a watch could not read, although the rest was read and reset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wstrace.errors import TargetExited, Unavailable


class Unread:
    """Keeps the errors of ranges while the other ones are read, so that what these had written can be returned first.

    The pages of a range that was read count as not written from then on, so an error raised at once would lose them.
    """

    def __init__(self) -> None:
        self._errors: list[Unavailable] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A context that keeps an Unavailable; TargetExited passes, because then nothing is left to read."""
        try:
            yield
        except TargetExited:
            raise
        except Unavailable as error:
            self._errors.append(error)

    def told(self) -> None:
        """Raises Unavailable if errors were kept since the last call."""
        errors, self._errors = self._errors, []
        if errors:
            more = f" (and that of {len(errors) - 1} more ranges)" if len(errors) > 1 else ""
            raise Unavailable(errors[0].why + more, errors[0].remedy)
