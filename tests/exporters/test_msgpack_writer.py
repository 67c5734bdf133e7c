"""The writer: contract, parts, full disks, locks, pipes, and what it must never leave behind."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import msgpack
import numpy as np
import pytest

from wstrace.batch import Batch
from wstrace.errors import OutputError, UsageError
from wstrace.interfaces import Context, Exporter
from wstrace.schema import MAPPING, MARK, PAGE_FAULT, PROCESS
from wstrace.testing import ExporterContract, batch_of
from wstrace_msgpack import live, osfile, sink, synthetic
from wstrace_msgpack.exporter import MsgpackExporter
from wstrace_msgpack.live import Covered, Mappings
from wstrace_msgpack.reader import open_trace

STORED = ("time_ns", "pid", "tid", "pc", "va", "flags", "mapping", "pc_mapping")


class TestMsgpack(ExporterContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self) -> Exporter:
        return MsgpackExporter(path=str(self.folder / "x.wst"), force=True)


class TestMsgpackRows(ExporterContract):
    @pytest.fixture(autouse=True)
    def path(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self) -> Exporter:
        return MsgpackExporter(path=str(self.folder / "x.rows"), layout="rows", force=True)


def started(path: Path, **options: object) -> tuple[MsgpackExporter, Context]:
    context = Context()
    exporter = MsgpackExporter(path=str(path), **options)
    exporter.start(context)
    return exporter, context


def everything(exporter: MsgpackExporter, context: Context, n: int = 10_000, rows: int = 1000) -> list[Batch]:
    exporter.export(synthetic.mappings(context.strings))
    exporter.export(synthetic.processes(context.strings))
    batches = list(synthetic.faults(context.strings, n, rows=rows))
    for batch in batches:
        exporter.export(batch)
    return batches


def column(batches, name: str) -> np.ndarray:
    return np.concatenate([batch[name] for batch in batches])


# -- what stands in the file -----------------------------------------------------------------------------------------


def test_every_row_comes_back_with_names_ledger_and_facts(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    context.facts.update(level="full", command=["prog", "\udcff"], peak=np.int64(5), odd={1, 2}, pid=None)
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
        assert all(len(batch) <= 65_536 for batch in read)
        assert trace.rows == {"page_fault": 200_000, "mapping": 40, "process": 2, "resident": 30, "mark": 1}
        assert trace.ledger.as_dict() == {"recorded:page_fault": 200_000, "lost_kernel:page_fault": 3}
        assert trace.facts["level"] == "full"
        assert trace.facts["command"] == ["prog", b"\xff"]
        assert trace.facts["peak"] == 5
        assert trace.process_names() == {synthetic.PID: ["made-up"]}
        assert trace.processes["code"].tolist() == [0, -3]
        (mark,) = trace.batches("mark")
        assert trace.strings[int(mark["text"][0])] == "warm \x1b[31m"
        (snapshot,) = trace.batches("resident")
        assert snapshot.header["pages"] == snapshot["pages"].sum()
        assert snapshot.header["last"] is True


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


def frames_in(path: Path) -> list[list]:
    with path.open("rb") as file:
        return list(msgpack.Unpacker(file, strict_map_key=False))


def test_columns_of_enrichers_are_stored_and_announced_others_left_out(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    (batch,) = synthetic.faults(context.strings, 10)
    exporter.export(batch.with_columns({"latency_ns": np.arange(10, dtype="<u8"), "share": np.zeros(10, "<f8")}))
    exporter.close()
    assert exporter.statistics()["columns_left_out"] == 1
    with open_trace(str(tmp_path / "x.wst")) as trace:
        (read,) = trace.batches("page_fault")
        assert read["latency_ns"].tolist() == list(range(10))
        assert "share" not in read
        assert {"page_fault": [["latency_ns", "u64", "count"]]} in [mark.get("schema") for mark in trace.marks]


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


def test_rows_wait_a_second_at_most_though_no_batch_comes(tmp_path, monkeypatch):
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 100, 100)
    size = (tmp_path / "x.wst").stat().st_size
    exporter.tick()
    assert (tmp_path / "x.wst").stat().st_size == size
    monkeypatch.setattr("wstrace_msgpack.writer.FRAME_SECONDS", 0.0)
    exporter.tick()
    with open_trace(str(tmp_path / "x.wst")) as trace:  # still open: cut, but all is there
        assert trace.rows["page_fault"] == 100
        assert trace.state == "cut"
    exporter.close()


def test_a_batch_without_time_has_its_window(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    columns = {"va": np.arange(5, dtype="<u8"), "tid": np.ones(5, "<u4")}
    exporter.export(Batch(PAGE_FAULT, columns, window=(70, 90), strings=context.strings))
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        (read,) = trace.batches("page_fault")
        assert (read.window, "time_ns" in read, len(read)) == ((70, 90), False, 5)


def test_layout_rows_is_one_plain_map_a_record(tmp_path):
    exporter, context = started(tmp_path / "x.rows", layout="rows")
    everything(exporter, context, 5000)
    exporter.close()
    maps = frames_in(tmp_path / "x.rows")
    faults = [m for m in maps if m["stream"] == "page_fault"]
    assert len(faults) == 5000
    assert set(faults[0]) == {"stream", *STORED}
    assert next(m for m in maps if m["stream"] == "mapping")["file"] == "/usr/lib/lib1.so"
    assert maps[-1]["stream"] == "end"


# -- parts -----------------------------------------------------------------------------------------------------------


def test_rotation_by_size_gives_parts_that_stand_alone(tmp_path):
    path = tmp_path / "x.wst"
    exporter, context = started(path, rotate_bytes=20_000)
    written = everything(exporter, context, 40_000)
    for batch in written[:0]:
        exporter.export(batch)
    exporter.flush(1)
    exporter.close()
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names[0] == "x.0001.wst"
    assert names[-1] == "x.wst"
    total = 0
    for name in names:
        import shutil

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


def test_rotation_by_age(tmp_path, monkeypatch):
    exporter, context = started(tmp_path / "x.wst", rotate_seconds=30.0)
    everything(exporter, context, 100)
    exporter.tick()
    assert exporter.statistics()["parts"] == 1
    monkeypatch.setattr(exporter._writer._parts, "_began", -1e9)
    exporter.tick()
    assert exporter.statistics()["parts"] == 2
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert trace.clean
        assert trace.rows["page_fault"] == 100


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


def test_memory_of_live_mappings_is_flat_over_execs(no_grace):
    mappings = Mappings()
    for exec_no in range(2000):  # 50 mappings each
        mappings.spaces.apply(process(EXEC, 5))
        base = exec_no * 50
        mappings.add(mapping(*((base + i + 1, 5, i * 100, i * 100 + 100) for i in range(50))))
        mappings.take_new()
    assert mappings._held < 3 * 65_536
    mappings.prune()
    assert mappings._held == 50


def test_covered_is_the_union_of_intervals():
    covered, painted = Covered(), np.zeros(200, bool)
    rng = np.random.default_rng(3)
    for _ in range(500):
        start = int(rng.integers(0, 199))
        end = int(rng.integers(start + 1, 200))
        assert covered.add(start, end) == (not painted[start:end].all())
        painted[start:end] = True


# -- outputs ---------------------------------------------------------------------------------------------------------


def test_an_existing_file_is_overwritten_with_force_only(tmp_path):
    path = tmp_path / "x.wst"
    path.write_bytes(b"precious")
    with pytest.raises(OutputError, match="-f"):
        started(path)
    assert path.read_bytes() == b"precious"
    started(path, force=True)[0].close()
    assert path.read_bytes() != b"precious"


@pytest.mark.skipif(os.name == "nt", reason="only on systems with modes")
def test_a_new_file_is_its_owners_only_and_not_inherited(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 10)
    assert stat.S_IMODE((tmp_path / "x.wst").stat().st_mode) == 0o600
    assert not os.get_inheritable(exporter._writer._sink.out.fd)
    exporter.close()


def test_two_writers_on_one_file(tmp_path):
    path = tmp_path / "x.wst"
    exporter, context = started(path)
    everything(exporter, context, 1000)
    exporter.flush(1)
    before = path.read_bytes()
    for how in ({"force": True}, {"resume": True}):
        with pytest.raises(OutputError, match="another wstrace"):
            started(path, **how)
    assert path.read_bytes() == before
    exporter.close()
    started(path, force=True)[0].close()


def test_places_that_cannot_be_written_say_so_and_what_to_do(tmp_path):
    with pytest.raises(OutputError, match="create its directory"):
        started(tmp_path / "none" / "x.wst")
    with pytest.raises(OutputError, match="name a file"):
        started(tmp_path, force=True)
    with pytest.raises(UsageError, match="level"):
        MsgpackExporter(path="x", level=99)
    with pytest.raises(UsageError, match="parts"):
        MsgpackExporter(path="x", layout="rows", keep=3)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="only on systems with users")
def test_a_read_only_directory(tmp_path):
    folder = tmp_path / "ro"
    folder.mkdir()
    folder.chmod(0o500)
    code = f"""
import os
from wstrace.interfaces import Context
from wstrace.errors import OutputError
from wstrace_msgpack.exporter import MsgpackExporter
os.getuid() == 0 and os.setuid(65534)
try:
    MsgpackExporter(path={str(folder / "x.wst")!r}).start(Context())
except OutputError as error:
    print(error.exit_code, error)
"""
    for parent in folder.parents:  # pytest's folders are 0700
        if parent.owner() == folder.owner() and parent != parent.parent and len(parent.parts) > 2:
            parent.chmod(parent.stat().st_mode | 0o055)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.stdout.startswith("123 cannot write"), out.stderr
    assert "a directory that you may write to" in out.stdout


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="only on systems with named pipes")
def test_a_fifo_gets_a_whole_trace(tmp_path):
    fifo, copy = tmp_path / "fifo", tmp_path / "copy.wst"
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: copy.write_bytes(fifo.read_bytes()))
    reader.start()
    exporter, context = started(fifo)
    everything(exporter, context, 20_000)
    exporter.close()
    reader.join(20)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    with open_trace(str(copy)) as trace:
        assert trace.clean
        assert trace.rows["page_fault"] == 20_000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="only on systems with named pipes")
def test_a_pipe_whose_reader_leaves_is_one_error(tmp_path):
    read, write = os.pipe()
    exporter, context = started(Path(f"/dev/fd/{write}"))
    os.close(write)
    everything(exporter, context, 1000)
    os.close(read)
    refused = 70_000
    with pytest.raises(OutputError, match="Broken pipe"):
        everything(exporter, context, 2 * refused, refused)
    with pytest.raises(OutputError, match="Broken pipe"):
        exporter.close()
    # nothing but the header got through; the lane itself counts the batch that was refused
    assert exporter.statistics()["dropped"] == 1000 + 2 + 2 + refused
    assert context.ledger.get("failed_lane") + refused == exporter.statistics()["dropped"]


STDOUT = """
from wstrace.interfaces import Context
from wstrace_msgpack import synthetic
from wstrace_msgpack.exporter import MsgpackExporter
context = Context()
exporter = MsgpackExporter(path="-")
exporter.start(context)
exporter.export(synthetic.mappings(context.strings))
for batch in synthetic.faults(context.strings, 100_000):
    exporter.export(batch)
exporter.close()
"""


def test_standard_output_is_a_trace_but_not_on_a_terminal(tmp_path):
    out = subprocess.run([sys.executable, "-c", STDOUT], capture_output=True, timeout=60)
    (tmp_path / "x.wst").write_bytes(out.stdout)
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert trace.clean
        assert trace.rows["page_fault"] == 100_000
    pty = pytest.importorskip("pty", reason="only on systems with terminals")
    master, slave = pty.openpty()
    told = subprocess.run([sys.executable, "-c", STDOUT], stdout=slave, stderr=subprocess.PIPE, timeout=60)
    os.close(slave)
    os.close(master)
    assert b"standard output is a terminal" in told.stderr


def test_a_session_that_fails_to_start_leaves_no_file(tmp_path):
    exporter, _ = started(tmp_path / "x.wst")
    exporter.cancel()
    assert not (tmp_path / "x.wst").exists()
    (tmp_path / "x.wst").write_bytes(b"it was there")
    exporter, _ = started(tmp_path / "x.wst", resume=True, force=True)
    exporter.cancel()
    assert (tmp_path / "x.wst").exists()


def test_a_trace_of_nothing_is_a_whole_trace(tmp_path):
    exporter, _ = started(tmp_path / "x.wst")
    exporter.tick()
    exporter.flush(1)
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert trace.clean
        assert trace.rows == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only on systems with fork")
def test_a_forked_child_writes_nothing(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 1000)
    pid = os.fork()
    if pid == 0:
        exporter.abandon()
        exporter.close()
        os._exit(0)
    os.waitpid(pid, 0)
    everything(exporter, context, 1000)
    exporter.close()
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert trace.clean
        assert trace.rows["page_fault"] == 2000


def test_statistics_can_be_printed(tmp_path):
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 10)
    exporter.close()
    assert json.loads(json.dumps(exporter.statistics()))["rows"] == 52


# -- disks that fail -------------------------------------------------------------------------------------------------


class Disk:
    """os.write with a disk that has so many bytes left, or fails in other ways."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1 << 60
        self.error = errno.ENOSPC
        self._write = os.write
        self._truncate = os.ftruncate
        monkeypatch.setattr(osfile.os, "write", self.write)
        monkeypatch.setattr(osfile.os, "ftruncate", self.ftruncate)
        monkeypatch.setattr(sink, "RETRY_SECONDS", 0.0)

    def write(self, fd: int, data: object) -> int:
        view = memoryview(data)[: self.left]
        if not view:
            raise OSError(self.error, os.strerror(self.error))
        self.left -= len(view)
        return self._write(fd, view)

    def ftruncate(self, fd: int, size: int) -> None:
        self.left += os.fstat(fd).st_size - size
        self._truncate(fd, size)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_short_writes_are_gone_on_with(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(osfile.os, "write", lambda fd, data: write(fd, memoryview(data)[:1000]))
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 10_000)
    exporter.close()
    with open_trace(str(tmp_path / "x.wst"), scan=True) as trace:
        assert trace.clean
        assert trace.rows["page_fault"] == 10_000


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_never_leaves_half_a_frame_and_waits_for_space(tmp_path, disk, error):
    path = tmp_path / "x.wst"
    disk.error = error
    exporter, context = started(path)
    everything(exporter, context, 5000)
    exporter.flush(1)
    disk.left = 1000  # some of the next frame
    everything(exporter, context, 5000)
    exporter.flush(1)
    with open_trace(str(path), scan=True) as trace:
        assert trace.damage()["lost_bytes"] == 0
        assert trace.rows["page_fault"] == 5000
    assert exporter.statistics()["waiting_bytes"] > 0
    disk.left = 1 << 60
    everything(exporter, context, 5000)
    exporter.close()
    with open_trace(str(path), scan=True) as trace:
        assert trace.clean
        assert trace.rows["page_fault"] == 15_000
    assert exporter.statistics()["dropped"] == 0
    assert context.ledger.losses() == []


def test_what_does_not_fit_in_memory_is_dropped_counted_and_marked(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(sink, "QUEUE_BYTES", 100_000)
    path = tmp_path / "x.wst"
    exporter, context = started(path)
    everything(exporter, context, 5000)
    exporter.flush(1)
    disk.left = 0
    for _ in range(20):
        everything(exporter, context, 5000)
        exporter.flush(1)
        assert exporter.statistics()["waiting_bytes"] < 400_000
    dropped = exporter.statistics()["dropped"]
    assert dropped > 0
    assert context.ledger.get("failed_lane", "msgpack") == dropped
    disk.left = 1 << 60
    everything(exporter, context, 5000)
    exporter.close()
    with open_trace(str(path), scan=True) as trace:
        assert trace.clean
        assert trace.damage()["lost_names"] == 0
        lost = sum(sum(mark["lost"].values()) for mark in trace.marks if mark["m"] == "lost")
        assert lost == dropped
        assert trace.rows["page_fault"] + lost == 22 * 5000
        assert trace.ledger.get("failed_lane") == dropped


def test_a_disk_that_stays_full_is_an_error_at_the_end_and_the_file_reads(tmp_path, disk):
    path = tmp_path / "x.wst"
    exporter, context = started(path)
    everything(exporter, context, 5000)
    exporter.flush(1)
    disk.left = 10
    everything(exporter, context, 5000)
    with pytest.raises(OutputError, match=r"No space left.*5,042 records.*recover"):
        exporter.close()
    assert context.ledger.get("failed_lane") == 5042  # mappings and processes too
    with open_trace(str(path)) as trace:
        assert trace.state == "cut"
        assert trace.damage()["lost_bytes"] == 0
        assert trace.rows["page_fault"] == 5000


def test_the_end_fits_where_the_rows_do_not(tmp_path, disk):
    path = tmp_path / "x.wst"
    exporter, context = started(path)
    everything(exporter, context, 5000)
    exporter.flush(1)
    disk.left = 8000  # less than the frame, more than the end
    everything(exporter, context, 30_000)
    exporter.close()
    with open_trace(str(path), scan=True) as trace:
        assert trace.clean
        assert trace.rows["page_fault"] == 5000
        assert context.ledger.get("failed_lane") == exporter.statistics()["dropped"] == 30_000
        assert any(mark["m"] == "lost" and mark["why"] == "No space left on device" for mark in trace.marks)


def test_a_sync_that_fails_at_the_end_is_told(tmp_path, monkeypatch):
    exporter, context = started(tmp_path / "x.wst")
    everything(exporter, context, 100)

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(osfile.os, "fsync", fails)
    with pytest.raises(OutputError, match="Input/output error"):
        exporter.close()
