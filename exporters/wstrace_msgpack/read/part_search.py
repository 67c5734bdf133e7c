"""Which parts of a rotated trace can hold a window of time: found by halving, as their names tell only their order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

#: For how long a record may wait until it is written, so that a part may begin before the one before it ends: rows
#: gather for a second, a snapshot takes seconds, and a tracer that was stopped is behind by as long.
LATE_NS = 60 * 10**9
_NEVER = 1 << 64


def parts_within(n: int, span_of: Callable[[int], tuple[int, int] | None], start: int | None, end: int | None) -> range:
    """The numbers of the parts, of n that follow each other in time, that can hold rows of a window.

    Args:
        n: the number of parts.
        span_of: gives (first, last) time of a part's rows, None = it has none. It is asked of about log2(n) parts, and
            of those that the window meets.
        start, end: the window in nanoseconds, without `end`; None = no bound.
    """

    def span(number: int) -> tuple[int, int]:
        """That of a part, or of the next one that has rows."""
        spans = (span_of(other) for other in range(number, n))
        return next((found for found in spans if found is not None), (_NEVER, _NEVER))

    first = 0
    if start is not None:
        first = bisect_left(range(n), start - LATE_NS, key=lambda number: span(number)[1])
    if end is None:
        return range(first, n)
    low, step = first, 1
    while low + step < n and span(low + step)[0] < end + LATE_NS:
        low, step = low + step, 2 * step
    return range(first, bisect_left(range(n), end + LATE_NS, low, min(low + step, n), key=lambda one: span(one)[0]))
