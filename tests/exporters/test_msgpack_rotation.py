"""Parts: when a new one begins, and that each stands alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import synthetic_trace as synthetic
from msgpack_scripted import STORED, column, everything, started

from wstrace.batch import Batch
from wstrace.errors import OutputError
from wstrace.schema import MAPPING, PROCESS
from wstrace.testing import batch_of
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write import live_mappings as live
from wstrace_exporters.msgpack.write.live_mappings import Mappings


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
        everything(exporter, context, 3000)
        exporter.flush(1)
    exporter.close()
    assert exporter.statistics()["parts"] > 4
    left = sorted(p.name for p in tmp_path.iterdir())
    assert len(left) == 2
    assert not path.exists()
    with open_trace(str(path)) as trace:
        assert [Path(part.path).name for part in trace.parts] == left
        assert trace.damage()["lost_names"] == 0


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


@pytest.fixture
def no_grace(monkeypatch):
    monkeypatch.setattr(live, "GRACE_SECONDS", -1.0)


def live_after(*batches: Batch) -> set[int]:
    """The ids of mappings that a new part begins with."""
    mappings = Mappings()
    for batch in batches:
        if batch.schema is MAPPING:
            mappings.add(batch)
        else:
            mappings.spaces.apply(batch)
    mappings.restart()
    rows = mappings.take_new()
    return set(rows["id"].tolist()) if rows else set()


def mapping(*rows: tuple[int, int, int, int]) -> Batch:
    """Rows of (id, pid, start, end)."""
    ids, pids, starts, ends = (list(column) for column in zip(*rows, strict=True))
    return batch_of(MAPPING, id=ids, time_ns=1, pid=pids, start=starts, end=ends, offset=0, file=0, flags=1)


def process(event: int, pid: int, ppid: int = 1) -> Batch:
    return batch_of(PROCESS, time_ns=1, pid=pid, tid=pid, ppid=ppid, event=event)


FORK, EXEC, EXIT = 2, 3, 4


def test_only_live_mappings_are_repeated(no_grace):
    both = mapping((1, 5, 0, 100), (2, 6, 0, 100))
    assert live_after(both) == {1, 2}
    assert live_after(both, process(EXIT, 5)) == {2}
    assert live_after(both, mapping((3, 5, 0, 100))) == {2, 3}, "overlaid as a whole"
    assert live_after(both, mapping((3, 5, 0, 60), (4, 5, 50, 200))) == {2, 3, 4}, "overlaid by two"
    assert live_after(both, mapping((3, 5, 0, 99))) == {1, 2, 3}, "a byte of it is left"
    assert live_after(both, process(EXEC, 5), mapping((3, 5, 500, 600))) == {2, 3}
    assert live_after(mapping((0, 0, 1 << 63, (1 << 64) - 1), (1, 0, 5, 6)), process(EXIT, 9)) == {0, 1}, "the kernel's"


def test_a_forked_child_keeps_its_parents_mappings_alive(no_grace):
    parent = mapping((1, 5, 0, 100))
    assert live_after(parent, process(FORK, 7, 5), process(EXIT, 5)) == {1}
    assert live_after(parent, process(FORK, 7, 5), mapping((2, 5, 0, 100))) == {1, 2}, "overlaid in the parent only"
    assert live_after(parent, process(FORK, 7, 5), process(EXIT, 5), process(EXIT, 7)) == set()
    assert live_after(parent, process(FORK, 7, 5), process(EXIT, 5), process(EXEC, 7)) == set()
    grandchild = (process(FORK, 7, 5), process(FORK, 8, 7), process(EXIT, 5), process(EXIT, 7))
    assert live_after(parent, *grandchild) == {1}


def test_records_that_come_after_the_exit_still_find_their_mapping(tmp_path):
    exporter, context = started(tmp_path / "x.wst", rotate_bytes=1)  # a part for every frame
    exporter.export(synthetic.mappings(context.strings))
    exporter.export(synthetic.processes(context.strings))  # exits
    first, second = synthetic.faults(context.strings, 200, rows=100)
    exporter.export(first)
    exporter.flush(1)
    exporter.export(second)
    exporter.flush(1)
    exporter.close()
    assert exporter.statistics()["parts"] > 1
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert sum(len(batch) for batch in trace.batches("page_fault", ["file"])) == 200
        assert trace.damage()["lost_names"] == 0
