"""The flight recorder where cgroups are watched: each one's records are kept apart, within one limit on the disk."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import synthetic_trace as synthetic

from wstrace.batch import Batch, SnapshotPart
from wstrace.clock import now_ns
from wstrace.errors import UsageError
from wstrace.firing import KILLED, REACHED, Firing, Recording
from wstrace.interfaces import Context
from wstrace.schema import (
    CALL_SITE,
    CONTENT_LOSS,
    FRAME_PYTHON,
    LOSS_UNMAPPED,
    MARK,
    PAGE_FAULT,
    PROCESS,
    PROCESS_EXIT,
    PROCESS_FORK,
    PROCESS_SEEN,
    RESIDENT_PAGES,
)
from wstrace.testing import batch_of
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write import rings
from wstrace_exporters.msgpack.write.flight_recorder import FlightRecorder

A, B = "/pods/a", "/pods/b"


class Pods:
    """A division: each cgroup below /pods is watched, with all below it."""

    def __init__(self) -> None:
        self.of: dict[int, str] = {}  # pid -> cgroup

    def of_cgroup(self, path: str) -> str:
        return "/".join(path.split("/")[:3]) if path.startswith("/pods/") else ""

    def of_process(self, pid: int) -> str:
        return self.of_cgroup(self.of.get(pid, ""))


class Node:
    """A recorder of several cgroups that is fed by hand. Process N has the mappings N to N + 39."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder, self.context, self.pods = folder, Context(), Pods()
        self.exporter = FlightRecorder(path=str(folder / "node.wst"), answers="no", **{"keep": 60.0, **options})
        self.exporter.start(self.context)
        self.context.division.append(self.pods)
        self._random = random.Random(1)  # addresses that are no run, so that they take room

    def batch(self, schema, **columns) -> Batch:
        batch = batch_of(schema, self.context.strings, **columns)
        self.exporter.export(batch)
        return batch

    def process(self, pid: int, event: int = PROCESS_SEEN, ppid: int = 1, name: str = "") -> None:
        self.batch(PROCESS, time_ns=now_ns(), pid=pid, ppid=ppid, tid=pid, event=event, name=name, code=-1)

    def program(self, pid: int, name: str) -> None:
        """A process with its mappings and a stack of two frames, which are shared by all programs."""
        self.process(pid, name=name)
        self.exporter.export(synthetic.mappings(self.context.strings, first=pid, pid=pid))
        if pid == 100:
            self.context.ledger.add("recorded", 3, "call_site")
            self.batch(CALL_SITE, id=[1, 2, 3], parent=[0, 1, 1], kind=FRAME_PYTHON, mapping=0, offset=0, flags=0,
                       function=["main", "load_index", "never_run"], file="app.py", line=[1, 5, 9])  # fmt: skip

    def faults(self, n: int, pid: int, cgroup: str, stack: int = 0) -> None:
        """n faults now, in a frame of their own."""
        at = now_ns()
        va = [self._random.getrandbits(44) for _ in range(n)]
        self.context.ledger.add("recorded", n, "page_fault")
        self.batch(PAGE_FAULT, time_ns=[at + i for i in range(n)], pid=pid, tid=pid, pc=0x400000, va=va, flags=0,
                   mapping=pid, pc_mapping=pid + 1, stack=stack, cgroup=cgroup)  # fmt: skip
        self.exporter._rings.flush()
        self.exporter.tick()

    def fire(self, cgroup: str, how: str = REACHED, pids: tuple[int, ...] = ()) -> None:
        firing = Firing(now_ns(), "rss=1MiB", cgroup, how, 3 << 20, cgroup, pids)
        self.context.firings.append(firing)
        mark = batch_of(MARK, self.context.strings, time_ns=[firing.time_ns], pid=1, tid=1, text=["rss=1MiB"])
        mark.source = "triggers"
        self.exporter.export(mark)
        self.exporter.record_pending()

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir())


def names_in(trace) -> dict[int, list[str]]:
    return {pid: names for pid, names in trace.process_names().items() if names}


def test_a_busy_cgroup_does_not_cost_a_quiet_one_its_minutes(tmp_path):
    node = Node(tmp_path, ring_bytes=80_000)
    node.program(100, "quiet")
    node.program(200, "busy")
    node.faults(500, 100, A, stack=2)
    for _ in range(40):
        node.faults(1000, 200, B + "/below")  # some 7 KB
        assert node.bytes() < 80_000 + 3 * 17_000
    node.faults(20, 100, A)
    node.fire(A)
    node.fire(B)
    node.exporter.close()
    with open_trace(str(tmp_path / "node-1.wst")) as quiet, open_trace(str(tmp_path / "node-2.wst")) as busy:
        assert quiet.state == busy.state == "clean"
        assert quiet.rows["page_fault"] == 520
        assert Recording.of(quiet.info.extra).let_go.get("page_fault", 0) == 0
        assert names_in(quiet) == {100: ["quiet"]}
        assert set(quiet.mappings["pid"].tolist()) == {100}, "those that its rows name, and no other's"
        stacks = list(quiet.batches("call_site"))
        assert {quiet.strings[code] for batch in stacks for code in batch["function"].tolist()} == {
            "main",
            "load_index",
        }
        kept = busy.rows["page_fault"]
        assert 4000 < kept < 40_000
        assert kept + Recording.of(busy.info.extra).let_go["page_fault"] == 40_000
        assert names_in(busy) == {200: ["busy"]}, "it was told in a part that is gone"
        assert quiet.ledger.get("recorded", "page_fault") == 520
        assert busy.ledger.get("recorded", "page_fault") == kept
        assert quiet.ledger.get("recorded", "call_site") == 0, "each part repeats them"


def test_rows_without_a_cgroup_go_with_their_process(tmp_path):
    node = Node(tmp_path)
    node.pods.of = {100: A + "/below", 200: B, 300: "/system"}
    for pid, name in ((100, "a"), (200, "b"), (300, "other")):
        node.program(pid, name)
    node.process(101, PROCESS_FORK, ppid=100, name="child of a")
    node.process(400, PROCESS_FORK, ppid=300, name="moves")
    node.faults(5, 400, A)  # its first fault shows that it has moved
    node.faults(3, 100, "")  # which cgroup it was in is not known
    node.faults(4, 200, "/system")  # a thread of it was in another one
    node.process(101, PROCESS_EXIT)
    pids = [100, 200, 300, 400, 101]
    node.batch(CONTENT_LOSS, time_ns=now_ns(), pid=pids, event=LOSS_UNMAPPED, start=[4096 * pid for pid in pids],
               end=1 << 30, to=0, other=0)  # fmt: skip
    looked = batch_of(RESIDENT_PAGES, node.context.strings, start=[4096], pages=[3], flags=0, mapping=207)
    looked.snapshot = SnapshotPart(time_ns=now_ns(), pid=200, number=1)
    node.exporter.export(looked)
    node.batch(MARK, time_ns=now_ns(), pid=1, tid=1, text=["warm"])
    assert node.exporter.statistics()["outside"] == 1 + 1 + 4 + 2, "processes, faults, losses of content"
    node.fire(A, pids=(100,))
    node.fire(B)
    node.exporter.close()
    with open_trace(str(tmp_path / "node-1.wst")) as a, open_trace(str(tmp_path / "node-2.wst")) as b:
        assert [pid for batch in a.batches("content_loss") for pid in batch["pid"].tolist()] == [100, 400, 101]
        assert names_in(a) == {100: ["a"], 101: ["child of a"], 400: ["moves"]}
        assert Recording.of(a.info.extra).pids == (), "its ring has no other's records"
        assert a.rows["page_fault"] == 5 + 3
        assert b.rows.get("page_fault", 0) == 0
        assert (a.rows.get("resident", 0), b.rows["resident"]) == (0, 1)
        assert b.rows.get("content_loss", 0) == 0, "the process has left it"
        assert b.mappings["id"].tolist() == [207]
        assert [len(list(one.batches("mark"))) for one in (a, b)] == [2, 2], "the user's, and its own"
    assert node.exporter.statistics() == {"recordings": 2, "removed": 0}


def test_every_part_has_what_its_rows_name(tmp_path):
    node = Node(tmp_path, ring_bytes=40_000)
    node.program(100, "a")
    for _ in range(60):
        node.faults(200, 100, A, stack=2)  # some 1.5 KB
    node.fire(A)
    node.exporter.close()
    parts = sorted(tmp_path.glob("node-1*.wst"))
    assert len(parts) > 5
    for path in parts[1:-1]:
        with open_trace(str(path)) as part:
            if part.rows.get("page_fault"):
                assert sorted(part.mappings["id"].tolist()) == [100, 101]
                assert part.rows["call_site"] == 2
    with open_trace(str(tmp_path / "node-1.wst")) as trace:
        assert Recording.of(trace.info.extra).let_go["page_fault"] > 0
        assert trace.rows["page_fault"] > 0


def test_past_the_limit_cgroups_share_a_ring_until_another_is_idle(tmp_path, monkeypatch):
    seconds = [1000.0]
    monkeypatch.setattr(rings, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    node = Node(tmp_path, rings=2)
    for number, pid in enumerate((100, 200, 300, 400)):
        node.program(pid, f"p{number}")
        node.faults(10, pid, f"/pods/{number}")
    counts = node.exporter.statistics()
    assert (counts["rings"], counts["sharing"]) == (3, 2)
    assert [note for note in node.context.info.notes if "more than 2 cgroups" in note]
    node.fire("/pods/2", pids=(300,))
    with open_trace(str(tmp_path / "node-1.wst")) as shared:
        assert names_in(shared) == {300: ["p2"], 400: ["p3"]}
        assert Recording.of(shared.info.extra).pids == (300,), "the answer is of its own processes"
    seconds[0] += 61  # nothing of any is kept
    node.faults(7, 300, "/pods/2")
    node.faults(8, 100, "/pods/0")
    assert node.exporter.statistics()["sharing"] == 1
    node.fire("/pods/2", KILLED)
    node.exporter.close()
    with open_trace(str(tmp_path / "node-2.wst")) as own:
        assert own.rows["page_fault"] == 7
        assert names_in(own) == {300: ["p2"]}
    assert not list(tmp_path.glob("node.ring*"))


def test_the_rings_have_the_names_of_their_cgroups(tmp_path):
    node = Node(tmp_path)
    for number, path in enumerate((A, "/pods/../x", "/pods/a b\n")):
        node.faults(1, 100 + number, path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "node.ring-a.wst", "node.ring-a_b_.wst", "node.ring-recording.wst"]  # fmt: skip


def test_a_cgroup_with_the_name_of_a_part_does_not_stand_in_the_way_of_another_ones_ring(tmp_path):
    node = Node(tmp_path, ring_bytes=80_000)
    node.faults(1, 100, A)
    node.faults(1, 200, A + ".0001")
    for _ in range(20):
        node.faults(1000, 100, A)
    node.fire(A)
    node.exporter.close()
    with open_trace(str(tmp_path / "node-1.wst")) as trace:
        assert trace.rows["page_fault"] < 20_000


@pytest.mark.parametrize("number", [0, -1])
def test_the_number_of_rings_is_above_0(number):
    with pytest.raises(UsageError, match="rings"):
        FlightRecorder(rings=number)
