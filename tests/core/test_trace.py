"""Trace: one type for what a session keeps in memory and for a file."""

import errno

import kit.synthetic_trace as synthetic
import numpy as np
import pytest

import wstrace
from wstrace.batch import Dictionary
from wstrace.schema import KIND_SHIFT, KINDS
from wstrace.session import Session
from wstrace.testing import ScriptedSource, ScriptedTarget

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
