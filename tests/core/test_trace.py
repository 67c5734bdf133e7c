"""Trace: one type for what a session keeps in memory and for a file, and what `info` says of it."""

import dataclasses
import errno
import time

import kit.synthetic_trace as synthetic
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wstrace
from wstrace import clock
from wstrace.batch import Dictionary
from wstrace.clock import ClockAnchor, now_ns
from wstrace.schema import KIND_SHIFT, KINDS
from wstrace.session import Session
from wstrace.testing import ScriptedSource, ScriptedTarget
from wstrace.trace_info import Level, TraceInfo, Usage

N = 5000


@pytest.fixture
def both(tmp_path):
    """The same records as a session's trace and as a file's."""
    strings = Dictionary()
    mappings = synthetic.mappings(strings)
    names, kinds = (np.zeros(int(mappings["id"].max()) + 1, dtype) for dtype in ("<u4", "u1"))
    names[mappings["id"]], kinds[mappings["id"]] = mappings["file"], mappings["flags"] >> KIND_SHIFT
    names[(names == 0) & (kinds == KINDS.index("anon"))] = strings.code("[anon]")
    faults = [  # as the enricher of live records gives them
        batch.with_columns({"file": names[batch["mapping"]], "kind": kinds[batch["mapping"]]})
        for batch in synthetic.faults(strings, N, rows=1000)
    ]
    batches = [mappings, synthetic.processes(strings), *faults, synthetic.resident(strings)]
    session = Session(
        targets=[ScriptedTarget()], sources=[ScriptedSource(batches)], enrichers=None, command=["made-up", "--flag"],
        exporters=[f"msgpack:path={tmp_path / 'x.wst'}"],
    )  # fmt: skip
    with session:
        session.wait(10)
    with wstrace.open_trace(tmp_path / "x.wst") as opened:
        yield session.trace, opened


def faults_by_file(trace) -> dict[str, int]:
    return {row.label: row.values["faults"] for row in trace.report(by="file").rows if row.values["faults"]}


def test_a_session_and_its_file_are_the_same_trace(both):
    for trace in both:
        assert isinstance(trace, wstrace.Trace)
        assert {stream: trace.rows[stream] for stream in ("page_fault", "process", "resident")} == {
            "page_fault": N, "process": 2, "resident": 30,
        }  # fmt: skip
    live, opened = both
    assert (live.info.command, live.info.page_size) == (opened.info.command, opened.info.page_size)
    for stream in ("page_fault", "process", "resident"):
        a, b = live.batches(stream).to_numpy(), opened.batches(stream).to_numpy()
        assert len(a) == live.rows[stream] == opened.rows[stream]
        for column in set(a.dtype.names) & set(b.dtype.names):
            if column in ("file", "pc_file", "name"):
                assert [live.strings[int(c)] for c in a[column]] == [opened.strings[int(c)] for c in b[column]]
            elif column not in ("mapping", "pc_mapping"):  # ids are the file's own
                assert np.array_equal(a[column], b[column]), (stream, column)
    assert faults_by_file(live) == faults_by_file(opened)
    assert live.ledger.get("recorded") == opened.ledger.get("recorded")


def test_a_selection_is_the_same_of_both(both):
    times = both[1].batches().to_numpy()["time_ns"]
    start, end = int(times[100]), int(times[900])
    for trace in both:
        rows = trace.batches("page_fault", ["va", "time_ns"], start, end).to_numpy()
        assert rows.dtype.names == ("va", "time_ns")
        assert len(rows) == ((times >= start) & (times < end)).sum()
        assert len(trace.batches(pids=[4242]).to_numpy()) == N
        assert len(trace.batches(pids=[1]).to_numpy()) == 0
        assert len(trace.batches("resident", pids=[1]).to_numpy()) == 0


def test_tables_are_pandas_frames(both):
    pandas = pytest.importorskip("pandas")
    for trace in both:
        frame = trace.batches("page_fault", ["va", "file", "kind"]).to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert len(frame) == N
        assert frame["va"].dtype == np.dtype("u8")
        assert set(frame["kind"].unique()) == {"file", "anon"}
        assert frame["file"].dtype == "category"
        found = frame.groupby("file", observed=True).size().to_dict()
        assert found == faults_by_file(trace)


def test_what_is_shown_of_things_is_an_answer_in_a_line(both):
    live, opened = both
    assert repr(live).startswith("<SessionTrace made-up --flag (7): stopped; ")
    assert repr(live).endswith("5,000 page_fault, 2 process, 30 resident; 0 lost>")
    assert "x.wst: clean; " in repr(opened)
    assert repr(opened.batches("page_fault", ["va"], start=5)).endswith("x.wst from 5 to the end ns: va>")
    session = Session(targets=[ScriptedTarget()], sources=[ScriptedSource()], command=["made-up"])
    assert repr(session) == "<Session of made-up (7): new; no record; 0 lost>"
    for shown in (live, opened, opened.batches(), session):
        assert len(repr(shown)) < 500
        assert "\n" not in repr(shown)


def test_a_missing_file_is_a_file_not_found_error_too(tmp_path):
    path = str(tmp_path / "none.wst")
    with pytest.raises(FileNotFoundError) as caught:
        wstrace.open_trace(path)
    assert isinstance(caught.value, wstrace.TraceFileError)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, path)
    assert str(caught.value) == f"cannot read {path}: No such file or directory"


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
