"""The writer: its contract, and what stands in the file."""

import kit.synthetic_trace as synthetic
import numpy as np
import pytest
from kit.msgpack_scripted import STORED, column, everything, frames_in, started

from wstrace.batch import Batch
from wstrace.interfaces import Exporter, Level
from wstrace.schema import MARK, PAGE_FAULT, PROCESS
from wstrace.table import Selection
from wstrace.testing import ExporterContract, batch_of
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write.exporter import MsgpackExporter


class TestMsgpack(ExporterContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path):
        self.folder = tmp_path

    def make(self) -> Exporter:
        return MsgpackExporter(path=str(self.folder / "x.wst"), force=True)


def test_every_row_comes_back_with_names_ledger_and_facts(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    context.info.level, context.info.command = Level("full"), ["prog", "\udcff"]
    context.info.extra.update(peak=np.int64(5), odd={1, 2}, pid=None)
    written = everything(exporter, context, 200_000, 70_000)
    exporter.export(batch_of(MARK, context.strings, time_ns=[5_000_000], pid=7, tid=8, text=["warm \x1b[31m"]))
    exporter.export(synthetic.resident(context.strings))
    context.ledger.add("recorded", 200_000, "page_fault")
    context.ledger.add("lost_kernel", 3, "page_fault")
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert trace.clean
        assert trace.state == "clean"
        read = list(trace.batches("page_fault"))
        for name in STORED:
            assert np.array_equal(column(read, name), column(written, name)), name
            assert column(read, name).dtype == column(written, name).dtype
        assert [len(batch) for batch in read] == [70_000, 70_000, 60_000]
        assert trace.rows == {"page_fault": 200_000, "mapping": 40, "process": 2, "resident": 30, "mark": 1}
        assert trace.ledger.as_dict() == {"recorded:page_fault": 200_000, "lost_kernel:page_fault": 3}
        assert trace.facts["level"] == "full"
        assert trace.facts["command"] == ["prog", b"\xff"]
        assert trace.facts["peak"] == 5
        assert trace.info.level == Level("full")
        assert trace.info.command == ["prog", "\udcff"]
        assert trace.info.extra == {"peak": 5, "odd": [1, 2]}
        assert trace.process_names() == {synthetic.PID: ["made-up"]}
        assert trace.processes["code"].tolist() == [0, -3]
        (mark,) = trace.batches("mark")
        assert trace.strings[int(mark["text"][0])] == "warm \x1b[31m"
        (snapshot,) = trace.batches("resident")
        assert snapshot.snapshot.pages == snapshot["pages"].sum()
        assert snapshot.snapshot.last is True


def test_derived_columns_are_not_stored_and_computed_again(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    exporter.export(synthetic.mappings(context.strings))
    (batch,) = synthetic.faults(context.strings, 1000)
    wrong = np.full(1000, 99, "<u4")
    exporter.export(batch.with_columns({"file": wrong, "pc_file": wrong, "kind": wrong.astype("|u1")}))
    exporter.close()
    stored = {name for frame in frames_in(tmp_path / "x.wst") if frame[1] == 3 for name in frame[5]["c"]}
    assert stored == set(STORED)
    with open_trace(str(tmp_path / "x.wst")) as trace:
        (read,) = trace.batches("page_fault")
        for va, file, kind in zip(batch["mapping"].tolist(), read["file"].tolist(), read["kind"].tolist(), strict=True):
            anonymous = (va - 1) % 4 == 3
            assert trace.strings[file] == ("[anon]" if anonymous else f"/usr/lib/lib{va}.so")
            assert kind == (2 if anonymous else 1)


def test_columns_of_enrichers_are_stored_and_announced_others_left_out(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    (batch,) = synthetic.faults(context.strings, 10)
    exporter.export(batch.with_columns({"latency_ns": np.arange(10, dtype="<u8"), "share": np.zeros(10, "<f8")}))
    exporter.close()
    line = "note           10  records without a column that a trace file has no type or no room for (share)"
    assert context.ledger.sentences() == [(line, False)]
    with open_trace(str(tmp_path / "x.wst")) as trace:
        (read,) = trace.batches("page_fault")
        assert read["latency_ns"].tolist() == list(range(10))
        assert "share" not in read
        assert trace.ledger.get("without_column", "share") == 10
        (announced,) = (mark["schema"]["page_fault"] for mark in trace.marks if mark["m"] == "schema")
        assert announced[-1] == ["latency_ns", "u64", "count"]


def test_small_batches_share_frames_and_loss_is_kept(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    batches = list(synthetic.faults(context.strings, 5000, rows=50))
    for batch in batches:
        exporter.export(Batch(PAGE_FAULT, batch.columns, window=batch.window, lost=2, strings=context.strings))
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        (read,) = trace.batches("page_fault")
        assert len(read) == 5000
        assert read.lost == 200
        assert trace.lost == {"page_fault": 200}


def test_a_process_comes_before_its_faults_though_these_fill_a_frame_first(tmp_path):
    """Else a report counts faults of processes whose program it does not know yet, or of the one that forked them."""
    exporter, context = started(tmp_path / "x.wst")
    for pid in (7, 8):
        exporter.export(batch_of(PROCESS, context.strings, time_ns=[pid], pid=pid, tid=pid, event=3, name=["ls"]))
        many = [10 + pid] * 40_000
        exporter.export(batch_of(PAGE_FAULT, context.strings, time_ns=many, pid=pid, tid=pid, pc=1, va=1, flags=0))
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        read = [(batch.schema.name, set(batch["pid"].tolist())) for batch in trace.read(Selection())]
    assert read == [("process", {7}), ("page_fault", {7}), ("process", {8}), ("page_fault", {8})]


@pytest.mark.parametrize("parts", [1, 2])
def test_a_trace_of_a_killed_writer_says_the_level_it_had(tmp_path, parts):
    exporter, context = started(tmp_path / "x.wst")
    why = "kernel addresses are hidden"
    context.info.level, context.info.targets = Level("user", why, "sysctl x"), (synthetic.PID,)  # as the sources start
    context.info.note("the plugin x failed")
    for part in range(parts):
        everything(exporter, context, 100)
        exporter.flush(1)
        assert part == parts - 1 or exporter._writer.rotate()
    exporter.after_fork_in_child()  # closes the file and writes nothing, as a kill
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert trace.state == "cut"
        assert trace.info.obstacles == [f"level user: {why}; to lift it: sysctl x"]
        assert trace.info.notes == ["the plugin x failed"]
        # what goes on is no process that was left running: its end is not known
        assert (trace.info.targets, trace.info.exit_code) == ((), None)


def test_a_cut_trace_without_a_level_does_not_claim_one(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 100)
    exporter.flush(1)
    exporter.after_fork_in_child()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert trace.info.level_name == context.info.level_name == "not known"
        assert trace.info.obstacles == ["level not known: the trace does not say it"]
