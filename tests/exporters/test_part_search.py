"""Which parts a window needs: as looking at all of them tells, from few of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wstrace_exporters.msgpack.read.open_parts import LATE_NS, parts_within

Span = tuple[int, int] | None

SECOND = 10**9
steps = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 90), st.booleans()), min_size=1, max_size=60)


def spans_of(steps: list[tuple[int, int, bool]]) -> list[Span]:
    """Parts that follow each other, of any length, some of them without rows."""
    begin, found = 0, list[Span]()
    for apart, long, rows in steps:
        begin += apart * SECOND
        found.append((begin, begin + (apart + long) * SECOND) if rows else None)
    last = 0
    for at, one in enumerate(found):
        if one is not None:
            last = max(last, one[1])
            found[at] = one[0], last
    return found


@given(steps, st.integers(-100, 5000), st.integers(0, 300))
def test_no_part_that_can_hold_a_row_of_the_window_is_left_out(
    steps: list[tuple[int, int, bool]], start: int, seconds: int
) -> None:
    spans = spans_of(steps)
    begin, end = start * SECOND, (start + seconds) * SECOND
    within = parts_within(len(spans), spans.__getitem__, begin, end)
    needed = [
        number
        for number, span in enumerate(spans)
        if span is not None and span[1] >= begin - LATE_NS and span[0] < end + LATE_NS
    ]
    assert set(needed) <= set(within)
    rows = [number for number in within if spans[number] is not None]
    assert rows == needed


def looked_at(n: int, length: int, at: int) -> int:
    asked = set[int]()

    def span_of(number: int) -> tuple[int, int]:
        asked.add(number)
        return number * length, (number + 1) * length - 1

    assert at // length in parts_within(n, span_of, at, at + 10**7)
    return len(asked)


def test_of_a_hundred_thousand_equal_parts_six_are_looked_at_beside_the_first() -> None:
    """The first, the last, the three that the window may meet as records are late, and one on either side."""
    for at in (12_345, 40_000, 77_777, 99_998):
        assert looked_at(100_000, 100 * SECOND, at * 100 * SECOND + 50 * SECOND) <= 6 + 1


def test_parts_of_very_different_lengths_cost_no_more_than_three_times_halving() -> None:
    """The last of 4,096 parts is as long as all others together, a thousand times."""
    asked = set[int]()

    def span_of(number: int) -> tuple[int, int]:
        asked.add(number)
        return number * SECOND, (number + 1) * SECOND - 1 if number < 4095 else 4096_000 * SECOND

    parts_within(4096, span_of, 2048 * SECOND, 2048 * SECOND + 1)
    assert len(asked) <= 3 * 12 + 2 * 64
