"""Which parts of a rotated trace can hold a window of time: their names tell only their order, so some are opened."""

from __future__ import annotations

from collections.abc import Callable

#: For how long a record may wait until it is written, so that a part may begin before the one before it ends: rows
#: gather for a second, a snapshot takes seconds, and a tracer that was stopped is behind by as long.
LATE_NS = 60 * 10**9
_NEVER = 1 << 64


def parts_within(n: int, span_of: Callable[[int], tuple[int, int] | None], start: int | None, end: int | None) -> range:
    """The numbers of the parts, of n that follow each other in time, that can hold rows of a window.

    Args:
        n: the number of parts.
        span_of: gives (first, last) time of a part's rows, None = it has none. It is asked of a few parts where all
            are about as long, of 3 log2(n) at most, and of those that the window meets.
        start, end: the window in nanoseconds, without `end`; None = no bound.
    """

    def span(number: int) -> tuple[int, int]:
        """That of a part, or of the next one that has rows."""
        spans = (span_of(other) for other in range(number, n))
        return next((found for found in spans if found is not None), (_NEVER, _NEVER))

    first = 0
    if start is not None:
        first = _first(0, n, start - LATE_NS, lambda number: span(number)[1])
    if end is None:
        return range(first, n)
    low, step = first, 1
    while low + step < n and span(low + step)[0] < end + LATE_NS:
        low, step = low + step, 2 * step
    return range(first, _first(low, min(low + step, n), end + LATE_NS, lambda number: span(number)[0]))


def _first(low: int, high: int, at: int, time_of: Callable[[int], int]) -> int:
    """The first number in [low, high) whose time is not before `at`, else `high`; the times ascend.

    It looks where the time would be if all parts between two that are known were as long: under a steady load they
    are. Every third look halves what is left, whatever their lengths.
    """
    if low >= high or (before := time_of(low)) >= at:
        return low
    last = high - 1
    if last == low or (after := time_of(last)) < at:
        return high
    looks = 0
    while last - low > 1:
        looks += 1
        place = low + (last - low) // 2
        if looks % 3 and after < _NEVER:
            place = min(max(low - (at - before) * (low - last) // (after - before), low + 1), last - 1)
        if (time := time_of(place)) < at:
            low, before = place, time
        else:
            last, after = place, time
    return last
