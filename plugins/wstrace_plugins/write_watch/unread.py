"""Memory that a watch could not read, although the rest was read and reset."""

from __future__ import annotations

from types import TracebackType

from wstrace.errors import TargetExited, Unavailable


class Unread:
    """A context that keeps the error of a range while the others are read, so that what these had written is returned.

    The pages of a range that was read count as not written from then on, so an error raised at once would lose them.
    """

    def __init__(self) -> None:
        self._errors: list[Unavailable] = []

    def __enter__(self) -> None:
        """Begins to read a range."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        """Keeps an Unavailable; TargetExited passes, because then nothing is left to read."""
        if not isinstance(error, Unavailable) or isinstance(error, TargetExited):
            return False
        self._errors.append(error)
        return True

    def told(self) -> None:
        """Raises Unavailable if errors were kept since the last call."""
        errors, self._errors = self._errors, []
        if errors:
            more = f" (and that of {len(errors) - 1} more ranges)" if len(errors) > 1 else ""
            raise Unavailable(errors[0].why + more, errors[0].remedy)
