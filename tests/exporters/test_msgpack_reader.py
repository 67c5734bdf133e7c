"""The reader: windows, projection, parts as one, Arrow."""

import kit.synthetic_trace as synthetic
import numpy as np
import pytest
from kit.msgpack_scripted import column, recorded, started

from wstrace_exporters.msgpack.format.layout import INDEX
from wstrace_exporters.msgpack.read.trace import open_trace

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
