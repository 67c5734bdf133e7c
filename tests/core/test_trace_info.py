"""What is known of a trace: to its plain values and back, whatever they hold; and the one clock."""

import dataclasses
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstrace import clock
from wstrace.clock import ClockAnchor, now_ns
from wstrace.trace_info import Level, TraceInfo, Usage

FULL = TraceInfo(
    command=["demo", "--flag"],
    targets=(7, 8),
    exit_code=3,
    level=Level("user", "paranoid is 2", "sysctl ..."),
    usage=Usage(10, 2, 4096, peak_sampled=True, peak_pid=8),
    sampled=100,
    notes=["exec's own"],
    lacking=["Python stacks: they need root"],
    started_ns=5,
    ended_ns=9,
    page_size=4096,
    final_snapshot=7,
    snapshot_age_ms=250,
    content_losses=("unmapped", "executed"),
    extra={"mine": [1, 2]},
)


def plain(info: TraceInfo) -> dict[str, object]:
    return {one.name: getattr(info, one.name) for one in dataclasses.fields(info) if one.name != "clock"}


@pytest.mark.parametrize("info", [TraceInfo(), FULL, TraceInfo(targets=(7,), level=Level("full"))])
def test_it_comes_back_as_it_was(info):
    assert plain(TraceInfo.from_dict(info.to_dict())) == plain(info)


def test_what_is_not_known_or_of_the_past_is_absent():
    assert TraceInfo(targets=(7,)).to_dict() == {"pid": 7}
    assert TraceInfo.from_dict({"saved": "old.wst"}).saved == ""
    assert [TraceInfo.from_dict({"sampled": n}).sampled for n in ((1 << 63) - 1, 1 << 64)] == [(1 << 32) - 1, 1]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*FULL.to_dict(), "usage_minor", "saved", "else"])


@given(st.dictionaries(KEYS | st.integers(), VALUES))
def test_values_of_any_type_are_taken_or_not_known(facts):
    info = TraceInfo.from_dict(facts)
    assert all(type(word) is str for word in (*info.command, *info.notes, *info.lacking))
    assert all(type(pid) is int and 0 <= pid < 1 << 63 for pid in info.targets)
    assert 1 <= info.sampled < 1 << 32
    assert 0 <= info.started_ns < 1 << 63
    assert plain(TraceInfo.from_dict(info.to_dict())) == plain(info) or "nan" in repr(facts)


def test_usage_of_two_processes_adds_up_and_their_peak_is_the_larger_one():
    both = Usage(1, None, 100) + Usage(2, 3, 50, 1.0, peak_sampled=True)
    assert both == Usage(3, 3, 100, 1.0, peak_sampled=True)
    assert (both.faults, Usage().faults) == (6, None)
    large, small, unknown = Usage(None, None, 100, peak_pid=7), Usage(None, None, 50, peak_pid=8), Usage(None, None, 70)
    assert [(a + b).peak_pid for a, b in ((large, small), (small, large), (unknown, large))] == [7, 7, 7]
    assert [(a + b).peak_pid for a, b in ((small, unknown), (unknown, small))] == [None, None]
    assert (large + Usage()).peak_pid == (Usage() + large).peak_pid == 7
    both = TraceInfo.of_several([TraceInfo(usage=large), TraceInfo(usage=small)]).usage
    assert (both.peak_resident_bytes, both.peak_pid) == (100, None)


def test_a_recorded_time_gets_the_offset_of_the_nearest_mark():
    anchor = ClockAnchor([(3000, 50_000), (1000, 21_000)], "CLOCK_MONOTONIC")
    assert not anchor.live
    assert anchor.marks == [(1000, 21_000), (3000, 50_000)]
    assert [anchor.wall(at) for at in (0, 1000, 1999, 2001, 9000)] == [20_000, 21_000, 21_999, 49_001, 56_000]
    assert ClockAnchor([(1000, 0)]).wall(10) == 0


def test_a_live_time_is_wall_time_and_the_clocks_are_read_again(monkeypatch):
    anchor = ClockAnchor()
    assert anchor.live
    assert abs(anchor.wall(now_ns()) - time.time_ns()) < 10**8
    # somebody sets the wall clock an hour ahead
    later = now_ns() + 2 * 60 * 10**9
    monkeypatch.setattr(clock, "_reading", lambda: (later, anchor.offset(0) + 3600 * 10**9))
    before = anchor.offset(later - 90 * 10**9)
    assert anchor.offset(later) - before == 3600 * 10**9
    assert len(anchor.marks) == 2


def test_equal_reasons_of_several_sessions_add_up():
    each = [TraceInfo(notes=["1,200 pages that came without a fault", "level user"]) for _ in range(2)]
    each[0].lack("Python stacks: they need root")
    assert TraceInfo.of_several(each).lacking == ["Python stacks: they need root"]
    assert TraceInfo.of_several(each).notes == ["2,400 pages that came without a fault", "level user"]


def test_notes_are_bounded_and_say_so():
    info = TraceInfo()
    for number in range(10_000):
        info.note(f"the cgroup /{number} was removed during the trace")
    assert len(info.notes) < 1000
    assert info.notes[0] == "the cgroup /0 was removed during the trace"
    assert info.notes[-1] == "and more"
