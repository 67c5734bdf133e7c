"""A trace written once and kept: what stands in the field today must read the same with every later version.

`python tests/exporters/test_msgpack_golden.py` writes a new one, for a new minor version beside the old ones.
"""

import hashlib
import json
from pathlib import Path

import kit.synthetic_trace as synthetic
import msgpack
import numpy as np
import pytest
from kit.msgpack_scripted import column, started

from wstrace.batch import Batch
from wstrace.errors import TraceFileError
from wstrace.schema import MARK
from wstrace.testing import batch_of
from wstrace_exporters.msgpack.commands.info import describe
from wstrace_exporters.msgpack.format import columns
from wstrace_exporters.msgpack.format.frames import IndexPage, pack_index, pid_set, unpack_index
from wstrace_exporters.msgpack.format.layout import EVENTS, HEADER, FrameError, pack_frame
from wstrace_exporters.msgpack.format.layout import MARK as MARK_FRAME
from wstrace_exporters.msgpack.format.values import packb
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write.copy import copy

GOLDEN = Path(__file__).parents[1] / "golden"
TRACES = sorted(GOLDEN.glob("wstf-2*.wst"))


def shown(path: Path) -> dict:
    """Everything of a trace as JSON has it: what `info` tells, and a digest of every column with names in clear."""
    with open_trace(str(path)) as trace:
        columns = {}
        for stream in (*trace.streams, "mapping"):
            for column in trace.columns_of(stream):
                batches = [batch[column.name] for batch in trace.batches(stream, [column.name])]
                values = np.concatenate(batches).tolist()
                if column.semantic == "str":
                    values = [trace.strings[code] for code in values]
                columns[f"{stream}.{column.name}"] = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
        facts = describe(trace)
        facts.pop("files")
        return json.loads(json.dumps({**facts, "columns": dict(sorted(columns.items()))}))


def test_there_is_a_golden_trace():
    assert TRACES


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_kept_trace_reads_as_it_always_did(path):
    assert shown(path) == json.loads(path.with_suffix(".json").read_text("utf-8"))


def write(path: Path) -> None:
    import kit.synthetic_trace as synthetic

    from wstrace.interfaces import Context, Level
    from wstrace.schema import MARK, Column, Schema
    from wstrace.testing import batch_of
    from wstrace_exporters.msgpack.format import osfile
    from wstrace_exporters.msgpack.write.exporter import MsgpackExporter

    osfile.host = lambda: {"name": "host", "system": "Linux", "release": "6.1", "machine": "x86_64", "cpus": 2}
    osfile.boot_id = lambda: "00000000-0000-0000-0000-000000000001"
    context = Context()
    info = context.info
    info.command, info.level, info.targets = ["program", "--option"], Level("full"), (synthetic.PID,)
    exporter = MsgpackExporter(path=str(path), force=True)
    exporter.start(context)
    exporter.export(synthetic.mappings(context.strings, 20))
    exporter.export(synthetic.processes(context.strings, name="bytes \udcff"))
    for batch in synthetic.faults(context.strings, 3000, rows=1000, n_mappings=20):
        exporter.export(batch)
        exporter.flush(1)
    own = Schema(
        "gc_pause", (Column("time_ns", "u64", "ns"), Column("phase", "u32", "str"), Column("where", "u32", "map"))
    )
    exporter.export(
        batch_of(own, context.strings, time_ns=[2_100_000, 2_200_000], phase=["mark", "sweep"], where=[1, 2])
    )
    exporter.export(synthetic.resident(context.strings, 10))
    exporter.export(batch_of(MARK, context.strings, time_ns=[2_500_000], pid=1, tid=2, text=["warm"]))
    context.ledger.add("recorded", 3000, "page_fault")
    context.ledger.add("lost_kernel", 5, "page_fault")
    exporter.close()
    path.with_suffix(".json").write_text(json.dumps(shown(path), indent=1) + "\n", "utf-8")


PIDS = (100, 104, 4242, 3_000_000)


@pytest.mark.parametrize("command", ["info", "report", "convert"])
def test_a_file_of_1_1_is_refused_in_a_line(tmp_path, capsys, command):
    from wstrace.cli import main

    more = ["-o", str(tmp_path / "x.wst")] if command == "convert" else []
    assert main([command, str(GOLDEN / "wstf-1.1.wst"), *more]) == 125
    said = capsys.readouterr().err
    assert "its format is version 1.1, this wstrace reads 2; read it with the version of wstrace that wrote it" in said
    assert said.count("\n") == 1


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A trace of four processes, each frame of one or two of them; and the addresses of each."""
    path = tmp_path_factory.mktemp("pids") / "x.wst"
    exporter, context = started(path)
    exporter.export(synthetic.mappings(context.strings))
    expected = {pid: [] for pid in PIDS}
    for number, batch in enumerate(synthetic.faults(context.strings, 20_000, rows=500)):
        pids = np.where(np.arange(500) % 3 == 0, PIDS[number % 4], PIDS[number // 4 % 4]).astype("<u4")
        exporter.export(Batch(batch.schema, {**batch.columns, "pid": pids}, window=batch.window, strings=batch.strings))
        exporter.flush(1)
        for pid in PIDS:
            expected[pid] += batch["va"][pids == pid].tolist()
    exporter.export(synthetic.resident(context.strings))
    exporter.export(batch_of(MARK, context.strings, time_ns=[5, 6], pid=[100, 104], tid=[1, 1], text=["a", "b"]))
    exporter.close()
    return path, expected


def test_a_selection_of_processes_holds_for_every_stream_and_column(several):
    path, expected = several
    with open_trace(str(path)) as trace:
        only = list(trace.batches("page_fault", ["file", "va"], pids=[104]))
        assert all(set(batch) == {"file", "va"} for batch in only)
        assert column(only, "va").tolist() == expected[104]
        assert [len(batch) for batch in trace.batches("resident", pids=[synthetic.PID])] == [30]
        assert list(trace.batches("resident", pids=[100])) == []
        assert [batch["pid"].tolist() for batch in trace.batches("mark", pids=[100])] == [[100]]
        assert len(next(iter(trace.batches("mapping", pids=[synthetic.PID])))) == 40
        assert list(trace.batches("mapping", pids=[100])) == []
        begin, end = (int(t) for t in trace.span())
        half = list(trace.batches("page_fault", ["va"], begin, (begin + end) // 2, pids=[104]))
        assert 0 < len(column(half, "va")) < len(expected[104])


def test_an_index_page_with_unknown_keys_is_read_and_one_of_other_widths_is_not():
    entries = np.array([[0, 0, 700, 0, 0, 0], [3, 700, 90, 65_536, 5, 2**64 - 1]], "<u8")
    page = IndexPage(entries, ["page_fault"], np.array([0, 9], "<u8"), np.array([0, pid_set([7])], "<u8"))
    packed = pack_index(page)
    plain = msgpack.unpackb(packed)
    assert plain["f"] == entries.tolist()
    for data in (packed, bytes([packed[0] + 1]) + packed[1:] + msgpack.packb("z") + msgpack.packb({"a": 1})):
        read = unpack_index(data)
        assert np.array_equal(read.entries, entries)
        assert (read.streams, read.pids.tolist()) == (["page_fault"], page.pids.tolist())
        assert read.stream.tolist() == [0, 0], "a number of no stream says nothing"
    for data in (msgpack.packb(plain), packed[:40], b""):
        with pytest.raises(FrameError):
            unpack_index(data)


def of_a_later_version(path: Path) -> str:
    """A file of 2.9: columns of an unknown semantic and of an unknown filter, a new kind of frame, a new mark."""
    file_id = path.name.ljust(8).encode()
    rows = {name: columns.encode(np.array([1, 2], "<u8" if name in ("time_ns", "pc", "va") else "<u4"))
            for name in ("time_ns", "pid", "tid", "pc", "va", "region")}  # fmt: skip
    rows |= {"flags": columns.encode(np.zeros(2, "|u1")), "packed": ["u32", [["simd", 4]], "none", 8, bytes(8)]}
    announced = {"page_fault": [["region", "u32", "region"]]}
    bodies = [
        (HEADER, {"v": [2, 9], "need": [], "id": file_id, "boot_id": path.name, "later": {"x": [1]}}),
        (MARK_FRAME, {"m": "schema", "t": 1, "schema": announced, "later": 5}),
        (MARK_FRAME, {"m": "weather", "t": 1, "sun": True}),
        (EVENTS, {"s": "page_fault", "n": 2, "t": [1, 2], "c": rows}),
        (9, {"new": 1}),
    ]
    path.write_bytes(b"".join(pack_frame(file_id, kind, n, packb(b)) for n, (kind, b) in enumerate(bodies)))
    return str(path)


def test_info_recover_and_merge_say_what_they_do_not_know(tmp_path, capsys):
    from wstrace.cli import main

    path, other = of_a_later_version(tmp_path / "x.wst"), of_a_later_version(tmp_path / "y.wst")
    words = ("2.9", "frames of unknown kinds, passed over: 1", "cannot be read: packed")
    for command in (["info", path], ["convert", path, "-o", f"{tmp_path}/r.wst"]):
        assert main(command) == 0
        said = "".join(capsys.readouterr())
        assert all(word in said for word in words), said
    with open_trace(str(tmp_path / "r.wst")) as trace:
        assert next(iter(trace.batches("page_fault")))["region"].tolist() == [1, 2]
        assert trace.schema("page_fault").column("region").semantic == "region"
    with open_trace([path, other], several_boots=True) as trace:
        copy(trace, str(tmp_path / "m.wst"))
    with open_trace(str(tmp_path / "m.wst")) as trace:
        merged = list(trace.batches("page_fault"))
        assert sum(map(len, merged)) == 4
        assert all("region" not in batch for batch in merged), "ids of two files in one column would mean two things"


def test_rows_of_processes_begin_a_new_part_before_a_readers_limit(tmp_path, monkeypatch):
    from wstrace_exporters.msgpack.format.layout import LIMITS

    few = LIMITS._replace(processes=8)
    monkeypatch.setattr("wstrace_exporters.msgpack.write.writer.LIMITS", few)
    exporter, context = started(tmp_path / "x.wst")
    for pid in range(100, 120):
        exporter.export(synthetic.processes(context.strings, pid=pid))
        exporter.flush(1)
    exporter.close()
    assert len(list(tmp_path.glob("x*.wst"))) > 2
    with open_trace(str(tmp_path / "x.wst"), limits=few) as trace:
        assert len(trace.processes) == 40
        assert trace.clean
    one = LIMITS._replace(processes=2)
    with (
        open_trace(str(tmp_path / "x.wst"), limits=one) as trace,
        pytest.raises(TraceFileError, match="than 2 processes"),
    ):
        _ = trace.processes


if __name__ == "__main__":
    write(GOLDEN / "wstf-2.0.wst")
