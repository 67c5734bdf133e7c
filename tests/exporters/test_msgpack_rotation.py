"""Parts: when a new one begins, and that each stands alone."""

import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from kit.msgpack_scripted import STORED, column, everything, started

from wstrace.batch import Batch
from wstrace.cli import main
from wstrace.errors import OutputError
from wstrace.interfaces import Context
from wstrace.schema import MAPPING, PAGE_FAULT
from wstrace.testing import batch_of
from wstrace_exporters.msgpack.format.layout import LIMITS
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write.writer import HELD_MAPPINGS, Rows


def test_rotation_by_size_gives_parts_that_stand_alone(tmp_path):
    path = tmp_path / "x.wst"
    exporter, context = started(path, rotate_bytes=20_000)
    written = everything(exporter, context, 40_000)
    exporter.flush(1)
    exporter.close()
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names[0] == "x.0001.wst"
    assert names[-1] == "x.wst"
    total = 0
    for name in names:
        alone = tmp_path / "alone" / name
        alone.parent.mkdir(exist_ok=True)
        shutil.copy(tmp_path / name, alone.with_name("one.wst"))
        with open_trace(str(alone.with_name("one.wst"))) as trace:
            assert trace.clean
            assert trace.damage()["lost_names"] == 0
            files = {trace.strings[c] for b in trace.batches("page_fault") for c in np.unique(b["file"]).tolist()}
            assert "[lost]" not in files
            total += trace.rows.get("page_fault", 0)
    assert total == 40_000
    with open_trace(str(path)) as trace:
        assert len(trace.parts) == len(names)
        for name in STORED:
            assert np.array_equal(column(trace.batches("page_fault"), name), column(written, name))
        assert len(trace.mappings) == 40


def test_keep_leaves_the_newest_parts_and_the_name_finds_them(tmp_path):
    path = tmp_path / "x.wst"
    exporter, context = started(path, rotate_bytes=8_000, keep=2)
    for _ in range(6):
        context.ledger.add("recorded", 3000, "page_fault")
        everything(exporter, context, 3000)
        exporter.flush(1)
    exporter.close()
    left = sorted(p.name for p in tmp_path.iterdir())
    assert len(left) == 2
    assert left[0] > "x.0004.wst"
    assert not path.exists()
    with open_trace(str(path)) as trace:
        assert [Path(part.path).name for part in trace.parts] == left
        first = int(left[0][2:6])
        gone = f"the first {first} parts missing, as keep removes them: {18_000 - trace.rows['page_fault']:,} faults"
        assert trace.report().completeness.split("; ")[1] == f"{gone} not in it"
        assert trace.damage()["lost_names"] == 0


@pytest.mark.parametrize(
    ("gone", "foreign", "words"),
    [((1,), False, "at least 1 part missing: 1,000 faults not in it"),
     ((1, 2), True, "at least 2 parts missing: 2,000 faults not in it"),
     ((1, 2, 3, 4), False, "at least 1 part missing")],
)  # fmt: skip
def test_parts_are_read_without_one_between_them_and_it_is_said(tmp_path, gone, foreign, words):
    path = tmp_path / "x.wst"
    exporter, context = started(path, rotate_bytes=1)
    for _ in range(4):
        context.ledger.add("recorded", 1000, "page_fault")
        exporter.export(fault_batch(context, *[1] * 1000))
        exporter.flush(1)
    exporter.close()
    with open_trace(str(path)) as trace:
        assert (len(trace.parts), trace.state) == (5, "clean")
    for number in gone:
        (tmp_path / f"x.{number:04}.wst").unlink()
    if foreign:
        exporter, context = started(tmp_path / "other.wst")
        everything(exporter, context, 10)
        exporter.close()
        (tmp_path / "other.wst").rename(tmp_path / "x.0001.wst")
    assert main(["convert", str(path), "-o", str(tmp_path / "y.wst")]) == 0
    for name in ("x", "y"):
        with open_trace(str(tmp_path / f"{name}.wst")) as trace:
            assert trace.info.incomplete == words
            assert trace.rows["page_fault"] == 1000 * (4 - min(len(gone), 3))
            assert name == "y" or trace.state == "incomplete"
            assert not trace.report().completeness.startswith("complete")


def test_a_stale_part_of_another_trace_is_not_read_as_one(tmp_path):
    path = tmp_path / "x.wst"
    exporter, context = started(tmp_path / "x.0001.wst")
    everything(exporter, context, 500)
    exporter.close()
    with pytest.raises(OutputError, match="force=true"):
        started(path)
    other = tmp_path / "y.wst"
    exporter, context = started(other)
    everything(exporter, context, 100)
    exporter.close()
    other.rename(path)
    with open_trace(str(path)) as trace:
        assert trace.rows["page_fault"] == 100
    exporter, _ = started(path, force=True)
    exporter.close()
    assert not (tmp_path / "x.0001.wst").exists()


def test_a_last_part_without_counts_is_one_and_its_rows_are_counted(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 100)
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert (trace.state, trace.ledger.get("recorded", "page_fault")) == ("clean", 100)


def mapping_batch(context, first: int, n: int) -> Batch:
    """Mappings first, first + 1, ... of a page each."""
    ids = list(range(first, first + n))
    return batch_of(MAPPING, context.strings, id=ids, time_ns=1, pid=5, start=[i << 12 for i in ids],
                    end=[(i + 1) << 12 for i in ids], offset=0, file=[f"/f{i}" for i in ids], flags=1)  # fmt: skip


def fault_batch(context, *mappings: int) -> Batch:
    return batch_of(PAGE_FAULT, context.strings, time_ns=5, pid=5, tid=5, pc=0, va=0, flags=0, mapping=list(mappings))


def test_a_part_repeats_the_mappings_that_its_rows_name_and_no_others(tmp_path):
    exporter, context = started(tmp_path / "x.wst", rotate_bytes=1)
    exporter.export(mapping_batch(context, 1, 50))
    for named in (1,), (7, 1), (1, 9):
        exporter.export(fault_batch(context, *named))
        exporter.flush(1)
    exporter.close()
    alone = []
    for number, path in enumerate(sorted(tmp_path.glob("x.*.wst"))):
        shutil.copy(path, tmp_path / f"alone{number}.wst")
        with open_trace(str(tmp_path / f"alone{number}.wst")) as trace:
            alone.append(trace.mappings["id"].tolist())
            assert trace.damage()["lost_names"] == 0
    assert alone == [[1, 7], [1, 9], []]


def test_mapped_files_begin_a_new_part_before_a_readers_limit(tmp_path, monkeypatch):
    few = LIMITS._replace(files=16)
    monkeypatch.setattr("wstrace_exporters.msgpack.write.writer.LIMITS", few)
    monkeypatch.setattr("wstrace_exporters.msgpack.write.writer.FRAME_ROWS", 8)
    monkeypatch.setattr("wstrace_exporters.msgpack.write.copy.MAPPINGS_AT_ONCE", 4)
    exporter, context = started(tmp_path / "x.wst")
    for first in range(1, 100, 3):
        exporter.export(mapping_batch(context, first, 3))
        exporter.export(fault_batch(context, first, first + 1, max(first - 20, 1)))
        if first % 4 == 0:
            exporter.flush(1)
    exporter.flush(1)
    for first in (1, 13, 25):  # what each frame names was in parts before
        exporter.export(fault_batch(context, *range(first, first + 12)))
        exporter.flush(1)
    exporter.close()
    assert main(["convert", str(tmp_path / "x.wst"), "-o", str(tmp_path / "y.wst")]) == 0
    for name in ("x", "y"):
        assert len(list(tmp_path.glob(f"{name}*.wst"))) > 3
        with open_trace(str(tmp_path / f"{name}.wst"), limits=few) as trace:
            assert len(trace.mappings) == 99
            assert trace.state == "clean"
            named = np.concatenate([batch["file"] for batch in trace.batches("page_fault")])
            assert (len(named), {trace.strings[code][:2] for code in named.tolist()}) == (135, {"/f"})


def test_mapped_files_past_the_limit_of_a_pipe_are_counted(tmp_path, monkeypatch):
    few = LIMITS._replace(files=16)
    monkeypatch.setattr("wstrace_exporters.msgpack.write.writer.LIMITS", few)
    monkeypatch.setattr("wstrace_exporters.msgpack.write.parts.Parts.due", lambda parts, full=False: False)
    exporter, context = started(tmp_path / "x.wst")
    for first in range(1, 30, 3):
        exporter.export(mapping_batch(context, first, 3))
    with pytest.raises(OutputError, match="lacks 15 records: mapping has more rows than a reader takes"):
        exporter.close()
    with open_trace(str(tmp_path / "x.wst"), limits=few) as trace:
        assert len(trace.mappings) == 15


def test_past_the_limit_mappings_are_forgotten_that_records_named_least_recently():
    context = Context()
    rows = Rows(MAPPING, "map", 400_000, forget=True)
    for first in range(0, 1_000_000, 10_000):
        rows.add(mapping_batch(context, first + 1, 10_000))
        rows.lacking(np.array([1, 3], "<u4"))
        rows.lacking(np.array([2], "<u4"), for_ever=True) if not first else None
    rows.begin_part()
    found = rows.lacking(np.arange(1_000_001, dtype="<u4"))
    assert found["id"][:3].tolist() == [1, 2, 3]
    assert 200_000 <= len(found["id"]) <= 500_000
    assert found["id"][-1] == 1_000_000


@pytest.mark.parametrize(("batches", "n"), [(10_000, 1), (150, 4_000)])
def test_held_mappings_take_a_bounded_memory_however_they_come(batches, n):
    strings, rows = Context().strings, Rows(MAPPING, "map", HELD_MAPPINGS, forget=True)
    rest = dict.fromkeys(("time_ns", "pid", "start", "end", "offset", "file", "dev", "ino", "flags"), np.zeros(n))
    tracemalloc.start()
    try:
        for first in range(1, batches * n, n):
            rows.add(batch_of(MAPPING, strings, id=np.arange(first, first + n), **rest))
        assert tracemalloc.get_traced_memory()[1] < (10 if n == 1 else 40) << 20
    finally:
        tracemalloc.stop()
