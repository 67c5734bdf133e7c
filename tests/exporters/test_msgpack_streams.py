"""Streams that are not ours: a file tells their schemas, so their columns read back by what they mean."""

import kit.synthetic_trace as synthetic
import numpy as np
from kit.msgpack_scripted import started

from wstrace.batch import Batch, SnapshotPart
from wstrace.schema import Column, Schema
from wstrace.testing import batch_of
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write.copy import copy

PAUSES = Schema(
    "gc_pause",
    (
        Column("time_ns", "u64", "ns"),
        Column("pid", "u32", "id"),
        Column("phase", "u32", "str"),
        Column("thread_name", "u32", "str"),
        Column("where", "u32", "map"),
        Column("freed", "u64", "count"),
        Column("label", "u32", "str", derived=True),
    ),
)


def pauses(strings, phases=("mark", "sweep"), mapping=3) -> Batch:
    n = len(phases)
    times = list(range(2_000_000, 2_000_000 + n))
    return batch_of(PAUSES, strings, time_ns=times, pid=synthetic.PID, phase=list(phases), thread_name="gc",
                    where=mapping, freed=7)  # fmt: skip


def names(trace, batch, column) -> list[str]:
    return [trace.strings[code] for code in batch[column].tolist()]


STACKS = Schema("heap_page", (Column("start", "u64", "addr"), Column("name", "u32", "str")), snapshot=True)


def test_a_third_partys_snapshot_reads_back(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    batch = batch_of(STACKS, context.strings, start=[4096, 8192], name=["young", "old"])
    header = {"snap": 1, "part": 0, "last": True, "pid": 7, "t": 5}
    exporter.export(
        Batch(STACKS, batch.columns, window=(5, 5), strings=context.strings, snapshot=SnapshotPart.from_dict(header))
    )
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        (read,) = trace.batches("heap_page")
        assert names(trace, read, "name") == ["young", "old"]
        assert read.schema == STACKS
        assert read.snapshot.pid == 7


def test_merged_recovered_and_resumed_files_keep_a_third_partys_names_and_mappings(tmp_path):
    for number, phases in enumerate((("mark", "sweep"), ("sweep", "compact"))):
        exporter, context = started(tmp_path / f"{number}.wst")
        exporter.export(synthetic.mappings(context.strings, first=1 + 100 * number))
        exporter.export(pauses(context.strings, phases, mapping=3 + 100 * number))
        exporter.close()
    with open_trace([str(tmp_path / "0.wst"), str(tmp_path / "1.wst")]) as trace:
        copy(trace, str(tmp_path / "merged.wst"))
    exporter, context = started(tmp_path / "0.wst", resume=True)
    exporter.export(synthetic.mappings(context.strings))
    exporter.export(pauses(context.strings, ("later", "mark"), mapping=5))
    exporter.close()
    for path, phases, ids in (
        ("merged.wst", ["mark", "sweep", "sweep", "compact"], [3, 3, 143, 143]),
        ("0.wst", ["mark", "sweep", "later", "mark"], [3, 3, 45, 45]),
    ):
        with open_trace(str(tmp_path / path)) as trace:
            batches = list(trace.batches("gc_pause"))
            assert [name for batch in batches for name in names(trace, batch, "phase")] == phases
            assert np.concatenate([batch["where"] for batch in batches]).tolist() == ids
            assert set(ids) <= set(trace.mappings["id"].tolist())


def test_a_stream_of_ours_cannot_be_given_another_meaning(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    odd = Schema("page_fault", (Column("va", "u64", "str"), Column("tag", "u32", "str")))
    exporter.export(batch_of(odd, context.strings, va=[5], tag=["tagged"]))
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert trace.schema("page_fault").column("va").semantic == "addr"
        (read,) = trace.batches("page_fault")
        assert names(trace, read, "tag") == ["tagged"], "a column that a later version added is read as it is announced"
