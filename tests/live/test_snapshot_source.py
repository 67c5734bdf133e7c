"""The source `working_set` on real processes: parts, intervals, trees, budget, the end of a launched command."""

import mmap
import subprocess
import sys
import time

import numpy as np
import pytest
from kit.blame_scripted import composition
from kit.command_line import until
from kit.held_memory import holder, holding

import wstrace
from wstrace import schema
from wstrace.errors import UsageError
from wstrace.interfaces import Context
from wstrace.testing import RecordingExporter
from wstrace_plugins.os.linux.backend import LinuxPlatform
from wstrace_plugins.working_set.source import WorkingSetSource

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: /proc/PID/pagemap")
PAGE = mmap.PAGESIZE


def test_a_large_snapshot_comes_in_parts_after_its_mappings():
    with holding(600 << 20, 2 * PAGE) as target:
        source = WorkingSetSource(interval=0)
        source.start(Context(targets=(LinuxPlatform().attach(target.pid),), children=False))
        batches = list(source.drain(0.1))
        assert source.finished
        assert list(source.stop()) == []
    space, *parts = batches
    assert space.schema is schema.ADDRESS_SPACE
    assert space["event"].tolist() == [schema.SPACE_REPLACE] + [schema.SPACE_MAP] * (len(space) - 1)
    assert [p.snapshot.part for p in parts] == [0, 1]
    assert [p.snapshot.last for p in parts] == [False, True]
    assert {(p.snapshot.pid, p.snapshot.number, p.snapshot.time_ns) for p in parts} == {
        (target.pid, 1, space.window[0])
    }
    assert [p.snapshot.pages for p in parts] == [int(p["pages"].sum()) for p in parts]
    start = np.concatenate([p["start"] for p in parts])
    assert (np.diff(start.astype(np.int64)) > 0).all()
    assert sum(p.snapshot.pages for p in parts) > 600 * 256 // 2


def test_every_interval_and_the_tree_with_names_from_the_enricher():
    keep = RecordingExporter()
    code = f"import subprocess; subprocess.run({holder(4 << 20)!r})"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        parent.stdout.readline()
        with wstrace.Session(parent.pid, sources=["working_set:interval=0.05,max_cpu=1"], exporters=[keep]):
            time.sleep(0.6)
        parent.stdin.close()
    resident = keep.of("resident")
    assert len({b.snapshot.pid for b in resident}) == 2
    assert len({b.snapshot.number for b in resident}) >= 4
    for batch in resident:
        assert (batch["file"] != 0).all()
        assert (batch["mapping"] != 0).all()
    names = {resident[0].strings[c] for c in resident[0]["file"].tolist()}
    assert "[heap]" in names
    assert any(name.endswith(("/libc.so.6", "/python3.11")) or "python" in name for name in names)


def test_the_budget_stretches_the_interval():
    with holding(64 << 20) as target:
        source = WorkingSetSource(interval=0.001, max_cpu=0.01)
        source.start(Context(targets=(LinuxPlatform().attach(target.pid),), children=False))
        until, batches = time.monotonic() + 0.5, []
        while time.monotonic() < until:
            batches += source.drain(0.05)
    taken = len({b.snapshot.number for b in batches if b.schema.name == "resident"})
    # the first is free, the next ones not before cost / max_cpu
    assert taken <= 2 + 0.5 * 0.01 / (source._cpu_seconds / taken)


@pytest.mark.parametrize("options", [{"interval": -1.0}, {"max_cpu": 0.0}, {"max_cpu": 2.0}])
def test_options_out_of_range(options):
    with pytest.raises(UsageError):
        WorkingSetSource(**options)


def test_unless_reported_otherwise_an_attached_process_is_read_at_both_ends():
    with holding(1 << 20) as target:
        source = WorkingSetSource()
        source.start(Context(targets=(LinuxPlatform().attach(target.pid),), children=False))
        first = list(source.drain(0.05))
        assert list(source.drain(0.05)) == []
        assert not source.finished
        last = list(source.stop())
    assert [b.schema.name for b in first] == [b.schema.name for b in last] == ["address_space", "resident"]


def test_a_mark_has_a_snapshot_soon_after_it():
    """GIVEN snapshots that are far apart WHEN a mark is set THEN there is one for it before the next is due."""
    with holding(4 << 20) as target, wstrace.Session(target.pid, sources=["working_set:interval=1000"]) as session:
        for text in ("warm", "hot"):
            session.mark(f"before {text}")
            session.mark(text)
            until(lambda text=text: _taken(session, text))
            assert composition(session.trace, at=text).inputs.time_ns == _taken(session, text)[0]
    assert len(_taken(session)) <= 6, "at the start and the end, one or two for marks that follow each other at once"


def _taken(session: wstrace.Session, mark: str = "") -> list[int]:
    """The times of all snapshots, or of those after a mark."""
    found = sorted({batch.snapshot.time_ns for batch in session.trace.batches("resident")})
    marks = {b.strings[b["text"][0]]: int(b["time_ns"][0]) for b in session.trace.batches("mark")}
    return [at for at in found if at >= marks.get(mark, 1 << 63)] if mark else found
