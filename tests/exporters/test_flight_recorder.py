"""The flight recorder: what it keeps, what it lets go and counts, and the trace files that it makes of that."""

import random
import time
from pathlib import Path

import kit.synthetic_trace as synthetic
import pytest

from wstrace.clock import now_ns
from wstrace.errors import OutputError, UsageError
from wstrace.firing import REACHED, Firing, Recording
from wstrace.interfaces import Context
from wstrace.schema import MARK, PAGE_FAULT, PROCESS, PROCESS_SEEN
from wstrace.testing import batch_of
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_exporters.msgpack.write.flight_recorder import FlightRecorder


class Recorded:
    """A recorder that is fed by hand."""

    def __init__(self, path: Path, **options: object) -> None:
        self.context = Context()
        self.exporter = FlightRecorder(path=str(path), answers="no", **options)
        self.exporter.start(self.context)
        self._random = random.Random(1)  # addresses that are no run, so that they take room
        self.exporter.export(synthetic.mappings(self.context.strings))
        self.exporter.export(batch_of(PROCESS, self.context.strings, time_ns=1, pid=100, ppid=1, tid=100,
                                      event=PROCESS_SEEN, name="python3", code=-1))  # fmt: skip

    def faults(self, n: int) -> None:
        """n faults now, in a frame of their own."""
        at = now_ns()
        va = [self._random.getrandbits(44) for _ in range(n)]
        self.context.ledger.add("recorded", n, "page_fault")
        self.exporter.export(batch_of(PAGE_FAULT, self.context.strings, time_ns=[at + i for i in range(n)], pid=100,
                                      tid=100, pc=0x400000, va=va, flags=0, mapping=0, pc_mapping=0))  # fmt: skip
        self.exporter.flush(1)
        self.exporter.tick()

    def fire(self, what: str = "rss=1MiB") -> Firing:
        firing = Firing(now_ns(), what, "api", REACHED, 3 << 20, sizes=((1, 1 << 20), (now_ns(), 2 << 20)))
        self.context.firings.append(firing)
        mark = batch_of(MARK, self.context.strings, time_ns=[firing.time_ns], pid=100, tid=100, text=[what])
        mark.source = "triggers"
        self.exporter.export(mark)
        return firing


def test_a_recording_has_the_kept_part_and_the_number_of_what_was_let_go(tmp_path):
    recorded = Recorded(tmp_path / "api.wst", keep=1.0)
    recorded.context.ledger.add("lost_kernel", 5, "page_fault")
    recorded.faults(1000)
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        recorded.faults(10)
        time.sleep(0.05)
    assert len(list(tmp_path.iterdir())) <= 11, "parts of an eighth of a second, one more, and one being written"
    firing = recorded.fire()
    recorded.exporter.close()
    with open_trace(str(tmp_path / "api-1.wst")) as trace:
        assert trace.state == "clean"
        shown = Recording.of(trace.info.extra)
        assert shown is not None
        assert (shown.time_ns, shown.what, shown.who, shown.how, shown.n_bytes) == (
            firing.time_ns, "rss=1MiB", "api", REACHED, 3 << 20,
        )  # fmt: skip
        n = trace.rows["page_fault"]
        assert shown.let_go["page_fault"] >= 1000
        assert n + shown.let_go["page_fault"] == recorded.context.ledger.get("recorded", "page_fault")
        assert trace.ledger.get("lost_kernel") == 0, "it was lost before what is kept"
        assert trace.ledger.get("recorded", "page_fault") == n
        assert trace.info.started_ns == shown.begin_ns
        assert (firing.time_ns - shown.begin_ns) / 1e9 >= 1.0
        assert trace.process_names()[100] == ["python3"], "it was in a part that is gone"


def test_nothing_is_left_without_a_firing(tmp_path):
    recorded = Recorded(tmp_path / "api.wst", keep=60)
    recorded.faults(100)
    assert list(tmp_path.iterdir())
    recorded.exporter.close()
    assert list(tmp_path.iterdir()) == []


def test_the_size_on_the_disk_goes_before_the_time(tmp_path):
    recorded = Recorded(tmp_path / "api.wst", keep=3600, ring_bytes=80_000)
    for _ in range(30):
        recorded.faults(1000)  # some 7 KB
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 80_000 + 2 * (10_000 + 7_000)
    recorded.fire()
    recorded.exporter.close()
    with open_trace(str(tmp_path / "api-1.wst")) as trace:
        shown = Recording.of(trace.info.extra)
        assert trace.rows["page_fault"] + shown.let_go["page_fault"] == 30_000
        assert trace.rows["page_fault"] > 5000


def test_what_was_gained_counts_from_the_reading_before_the_records_that_are_kept():
    firing = Firing(2_003, "growth=90MiB/10s", "api", REACHED, 100, sizes=((1_000, 10), (2_000, 100)))
    assert [firing.since(at) for at in (500, 1_001, 2_001)] == [(1_000, 10), (1_000, 10), (2_000, 100)]
    assert firing._replace(sizes=()).since(0) == (2_003, 100)


def test_it_goes_on_after_a_recording_and_the_next_one_has_the_same_minutes(tmp_path):
    recorded = Recorded(tmp_path / "api.wst", keep=60)
    recorded.faults(100)
    recorded.fire("rss=1MiB")
    recorded.exporter.record_pending()
    recorded.faults(50)
    recorded.fire("growth=1MiB/1s")
    recorded.exporter.close()
    with open_trace(str(tmp_path / "api-1.wst")) as first, open_trace(str(tmp_path / "api-2.wst")) as second:
        assert (first.rows["page_fault"], second.rows["page_fault"]) == (100, 150)
        assert (first.ledger.get("recorded", "page_fault"), second.ledger.get("recorded", "page_fault")) == (100, 150)
        assert len(first.mappings) == len(second.mappings) == 40
        assert second.process_names() == first.process_names() == {100: ["python3"]}
        assert Recording.of(first.info.extra).what == "rss=1MiB"
        assert Recording.of(second.info.extra).what == "growth=1MiB/1s"
        assert Recording.of(second.info.extra).let_go == {}
        assert second.state == "clean"


def test_the_ring_of_a_killed_recorder_is_removed_by_the_next_one_alone(tmp_path):
    killed = Recorded(tmp_path / "api.wst", ring_bytes=40_000)
    for _ in range(30):
        killed.faults(100)
    killed.fire()
    killed.exporter.record_pending()
    with pytest.raises(OutputError, match="is another recorder's; give this one a name of its own"):
        Recorded(tmp_path / "api.wst")
    recording = {path.name for path in tmp_path.glob("api-1*.wst")}
    (tmp_path / "api.ring-x.wst").write_bytes((tmp_path / "api-1.wst").read_bytes())  # what a user calls so
    (tmp_path / "elsewhere.wst").write_bytes(b"kept")
    (tmp_path / "api.ring.9999.wst").symlink_to(tmp_path / "elsewhere.wst")
    killed.exporter.after_fork_in_child()  # as the system does: its descriptors are closed, and nothing else
    assert len(list(tmp_path.glob("api.ring.*wst"))) > 3
    Recorded(tmp_path / "api.wst").exporter.close()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*recording, "api.ring-x.wst", "elsewhere.wst", "api.ring.9999.wst"}
    with open_trace(str(tmp_path / "api-1.wst")) as trace:
        assert trace.state == "clean"


def test_older_recordings_make_room_and_files_that_exist_stay(tmp_path):
    (tmp_path / "api-1.wst").write_bytes(b"another's")
    recorded = Recorded(tmp_path / "api.wst", keep=60, recordings=2)
    for _ in range(4):
        recorded.faults(10)
        recorded.fire()
        recorded.exporter.record_pending()
    recorded.exporter.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "api-1.wst", "api-4.0001.wst", "api-4.0002.wst", "api-4.wst",
        "api-5.0001.wst", "api-5.0002.wst", "api-5.0003.wst", "api-5.wst"]  # fmt: skip
    assert (tmp_path / "api-1.wst").read_bytes() == b"another's"


def test_a_recording_waits_for_the_records_of_before_the_firing(tmp_path):
    recorded = Recorded(tmp_path / "api.wst", keep=60)
    recorded.fire()
    recorded.exporter.tick()
    recorded.faults(7)  # those of a tracer come up to some 100 ms late
    assert not (tmp_path / "api-1.wst").exists()
    recorded.exporter.close()
    with open_trace(str(tmp_path / "api-1.wst")) as trace:
        assert trace.rows["page_fault"] == 7


def test_a_folder_that_is_gone_is_reported_as_the_failure(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    recorded = Recorded(folder / "api.wst", keep=60)
    recorded.faults(5)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    recorded.fire()
    with pytest.raises(OutputError, match="cannot write"):
        recorded.exporter.close()


@pytest.mark.parametrize("options", [{"keep": 0.0}, {"ring_bytes": 0}, {"recordings": -1}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(UsageError, match="flight_recorder"):
        FlightRecorder(**options)


@pytest.mark.parametrize("fact", [None, 7, {}, {"how": "reached", "time_ns": -1}, {"how": "reached", "bytes": "x"}])
def test_a_fact_that_is_not_ours_is_no_recording(fact):
    assert Recording.of({"recording": fact}) is None
