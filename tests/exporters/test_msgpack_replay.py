"""Replay of a recorded trace, and of one that still grows."""

import numpy as np
import pytest
from kit.msgpack_scripted import column, recorded

from wstrace.interfaces import Level, Source
from wstrace.session import Session
from wstrace.testing import RecordingExporter, SourceContract
from wstrace_exporters.msgpack.read.replay import Replay
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write.exporter import MsgpackExporter

N = 30_000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("replay") / "x.wst"


@pytest.fixture(scope="module")
def written(path):
    return recorded(path, N)


class TestReplay(SourceContract):
    @pytest.fixture(autouse=True)
    def file(self, path, written):
        self.path = str(path)

    def make(self) -> Source:
        return Replay(path=[self.path])


def replayed(**options: object) -> tuple[RecordingExporter, Session]:
    exporter = RecordingExporter()
    with Session(sources=[Replay(**options)], exporters=[exporter], enrichers=[], record=False) as session:
        assert session.wait(20)
    return exporter, session


def test_a_replay_gives_what_was_recorded(path, written):
    exporter, session = replayed(path=[str(path)])
    for name in written[0]:
        assert np.array_equal(column(exporter.of("page_fault"), name), column(written, name))
    assert exporter.batches[0].schema.name == "mapping", "mappings come before the rows that refer to them"
    assert {"file", "pc_file", "kind"} <= set(exporter.of("page_fault")[0])
    assert session.ledger.get("recorded", "page_fault") == N
    assert session.ledger.get("lost_kernel", "page_fault") == 7
    assert session.info.level == Level("full")
    assert session.info.usage.peak_resident_bytes == 123
    assert len(exporter.of("mark")) == len(exporter.of("resident")) == 1


def test_a_replay_into_a_file_keeps_clock_host_and_rows(path, written, tmp_path):
    copy = tmp_path / "copy.wst"
    exporters = [MsgpackExporter(path=str(copy))]
    with Session(sources=[Replay(path=[str(path)])], exporters=exporters, enrichers=[], record=False) as session:
        session.wait(20)
    with open_trace(str(path)) as old, open_trace(str(copy)) as new:
        assert new.clean
        assert new.rows == old.rows
        assert new.begin_ns == old.begin_ns
        assert old.ledger.as_dict().items() <= new.ledger.as_dict().items()
        for name in ("boot_id", "clock", "created_ns", "host", "page_size"):
            assert getattr(new.header, name) == getattr(old.header, name)
        for stream in ("page_fault", "process", "resident"):
            assert next(iter(old.batches(stream))).window[0] == next(iter(new.batches(stream))).window[0]
        files = [[t.strings[c] for c in column(t.batches("page_fault", ["file"]), "file").tolist()] for t in (old, new)]
        assert files[0] == files[1]


def test_a_replay_of_a_window_counts_from_the_beginning(path, written, monkeypatch):
    monkeypatch.setattr("wstrace_exporters.msgpack.read.trace.TraceFile.begin_ns", 2_000_000)
    times = column(written, "time_ns")
    exporter, session = replayed(path=[str(path)], start=0.005, end=0.010)
    expected = times[(times >= 7_000_000) & (times < 12_000_000)]
    assert np.array_equal(column(exporter.of("page_fault"), "time_ns"), expected)
    assert len(exporter.of("process")) == 1, "who the processes are is known whatever the window"
    assert session.ledger.get("recorded", "page_fault") == len(expected)
