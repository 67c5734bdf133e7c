"""Streams that are not ours, columns that some batches lack, snapshots that lack a part: what is there reads back."""

import kit.synthetic_trace as synthetic
import numpy as np
import pytest
from kit.msgpack_scripted import started

from wstrace.analysis.moments import LastSnapshots
from wstrace.batch import Batch, SnapshotPart
from wstrace.schema import RESIDENT_PAGES, Column, Schema
from wstrace.testing import batch_of
from wstrace_exporters.msgpack.format.layout import FRAME_ROWS
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


def residents(with_shares: int, without: int) -> tuple[Batch, Batch]:
    first = batch_of(RESIDENT_PAGES, start=list(range(with_shares)), pages=1, shares=2)
    return first, batch_of(RESIDENT_PAGES, start=list(range(without)), pages=1)


@pytest.fixture(params=["the first lacks it", "the last lacks it"])
def path(request, tmp_path):
    exporter, _ = started(tmp_path / "x.wst")
    batches = residents(860, 80)
    for batch in reversed(batches) if request.param == "the first lacks it" else batches:
        exporter.export(batch)
    exporter.close()
    return str(tmp_path / "x.wst")


def rows_of(batches) -> int:
    return sum(map(len, batches))


def test_rows_without_the_column_that_is_requested_are_rows(path):
    with open_trace(path) as trace:
        assert rows_of(trace.batches("resident", ["shares"])) == 940
        assert rows_of(trace.batches("resident", ["shares"], pids=[0])) == 940
        assert len(trace.batches("resident", ["shares"]).to_numpy()) == 940


def test_the_columns_of_several_parts_and_of_their_copy_are_those_of_all(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.wst", "b.wst")]
    for path, batch in zip(paths, reversed(residents(3, 2)), strict=True):
        exporter, _ = started(path)
        exporter.export(batch)
        exporter.close()
    copied = str(tmp_path / "both.wst")
    with open_trace(paths) as trace:
        assert "shares" in [column.name for column in trace.columns_of("resident")]
        copy(trace, copied)
    with open_trace(copied) as trace:
        assert "shares" in [column.name for column in trace.columns_of("resident")]
        assert len(trace.batches("resident", ["shares"]).to_numpy()) == 5


def whole(path: str) -> list[int]:
    """Pages of each whole snapshot of a file."""
    last = LastSnapshots(list, lambda pages, part: pages.append(int(part["pages"].sum())))
    with open_trace(path) as trace:
        for batch in trace.batches("resident"):
            last.add(batch)
    return [sum(pages) for _, pages in last]


@pytest.mark.parametrize("rows", [10, FRAME_ROWS + 1])
@pytest.mark.parametrize(("parts", "expected"), [((0, 1, 2), 3), ((1, 2), 0), ((0, 2), 0), ((0, 1), 0)])
def test_a_snapshot_with_a_missing_part_never_becomes_whole(tmp_path, rows, parts, expected):
    first, again = str(tmp_path / "x.wst"), str(tmp_path / "y.wst")
    exporter, context = started(tmp_path / "x.wst")
    for part in parts:
        runs = {"start": np.arange(rows, dtype="<u8") << 12, "pages": np.ones(rows, "<u4")}
        this = SnapshotPart(number=1, part=part, last=part == 2, pid=7, time_ns=5, pages=rows)
        exporter.export(Batch(RESIDENT_PAGES, runs, strings=context.strings, snapshot=this))
    exporter.close()
    assert whole(first) == ([expected * rows] if expected else [])
    with open_trace(first) as trace:
        copy(trace, again)
    assert whole(again) == whole(first)
