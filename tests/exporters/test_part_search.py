"""Which parts a window needs: those that all parts show, from few of them."""

from hypothesis import given
from hypothesis import strategies as st

from wstrace_exporters.msgpack.read.open_parts import parts_within

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
def test_the_parts_that_can_hold_a_row_of_the_window_are_found(steps, start, seconds):
    spans = spans_of(steps)
    begin, end = start * SECOND, (start + seconds) * SECOND
    assert parts_within(len(spans), spans.__getitem__, begin, end) == [
        number for number, span in enumerate(spans) if span is not None and span[1] >= begin and span[0] < end
    ]
