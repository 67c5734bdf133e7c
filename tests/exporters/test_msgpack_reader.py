"""The reader: windows, projection, parts as one, Arrow; replay of a recorded trace."""

import kit.synthetic_trace as synthetic
import numpy as np
import pytest
from kit.msgpack_scripted import column, recorded, started

from wstrace.interfaces import Level, Source
from wstrace.session import Session
from wstrace.testing import RecordingExporter, SourceContract
from wstrace_exporters.msgpack.format.layout import INDEX
from wstrace_exporters.msgpack.read.replay import Replay
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write.exporter import MsgpackExporter

N = 30_000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("reader") / "x.wst"


@pytest.fixture(scope="module")
def written(path):
    return recorded(path, N)


def test_any_time_window_is_exact(path, written):
    times = column(written, "time_ns")
    rng = np.random.default_rng(2)
    with open_trace(str(path)) as trace:
        for _ in range(30):
            start, end = sorted(int(t) for t in rng.choice(times, 2))
            expected = times[(times >= start) & (times < end)]
            got = list(trace.batches("page_fault", ["time_ns"], start, end))
            assert np.array_equal(column(got, "time_ns") if got else times[:0], expected)
        assert not list(trace.batches("page_fault", None, 0, 1))
        assert not list(trace.batches("page_fault", None, 1 << 62, None))
        assert sum(map(len, trace.batches("page_fault", ["va"], int(times[5000])))) == N - 5000


def test_the_index_goes_on_pages(tmp_path, monkeypatch):
    monkeypatch.setattr("wstrace_exporters.msgpack.format.layout.INDEX_ENTRIES", 7)
    batches = recorded(tmp_path / "x.wst", 3000, rows=50)
    with open_trace(str(tmp_path / "x.wst")) as trace:
        part = trace.parts[0]
        assert not part.scanned
        assert (part.entries["kind"] == INDEX).sum() > 8
        assert np.array_equal(column(trace.batches("page_fault"), "va"), column(batches, "va"))


def test_a_large_ledger_still_leaves_an_end_that_is_found(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    exporter.export(synthetic.mappings(context.strings))
    for i in range(500):
        context.ledger.set("failed_exporter", i, f"exporter_{i}")
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert not trace.parts[0].scanned
        assert trace.ledger.get("failed_exporter") == sum(range(500))


def test_memory_of_reading_is_bounded(tmp_path):
    import tracemalloc

    path = tmp_path / "x.wst"
    recorded(path, 1_000_000, rows=65_536)
    tracemalloc.start()
    with open_trace(str(path)) as trace:
        assert sum(map(len, trace.batches("page_fault"))) == 1_000_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 << 20


def test_a_part_with_a_lost_header_is_still_one_of_its_trace(tmp_path):
    batches = recorded(tmp_path / "x.wst", 5000, rows=250, rotate_bytes=6000)
    parts = sorted(tmp_path.glob("x.*.wst"))
    assert len(parts) > 2
    for part in (tmp_path / "x.wst", parts[1]):
        data = bytearray(part.read_bytes())
        data[50] ^= 1
        part.write_bytes(bytes(data))
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert len(trace.parts) == len(parts) + 1
        assert np.array_equal(column(trace.batches("page_fault", ["va"]), "va"), column(batches, "va"))
        assert trace.state == "damaged"


def test_batches_are_an_arrow_stream(path, written):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("arro3.core")
    with open_trace(str(path)) as trace:
        table = pyarrow.table(trace.batches("page_fault"))
        assert table.num_rows == N
        assert np.array_equal(table["va"].to_numpy(), column(written, "va"))
        names = set(table["file"].unique().to_pylist())
        assert "/usr/lib/lib1.so" in names
        assert "[anon]" in names
        assert set(table["kind"].unique().to_pylist()) == {"file", "anon"}
        projected = pyarrow.table(trace.batches("page_fault", ["tid", "pc_file"]))
        assert projected.column_names == ["tid", "pc_file"]
        assert pyarrow.table(trace.batches("mapping", ["file", "id"])).num_rows == 40
        assert pyarrow.table(trace.batches("process"))["name"].to_pylist() == ["made-up"] * 2
        assert pyarrow.table(trace.batches("written")).num_rows == 0


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
