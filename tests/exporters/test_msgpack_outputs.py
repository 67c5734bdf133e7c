"""Where a trace can be written: files, locks, pipes, disks that fail; what must never be left behind."""

import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kit.command_line import WSTRACE, wstrace
from kit.msgpack_scripted import everything, recorded, started

from wstrace.errors import OutputError
from wstrace_exporters.msgpack.format import osfile
from wstrace_exporters.msgpack.read.trace import open_trace


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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="only on systems with named pipes")
def test_a_fifo_gets_a_whole_trace(tmp_path):
    fifo, copy = tmp_path / "fifo", tmp_path / "copy.wst"
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: copy.write_bytes(fifo.read_bytes()), daemon=True)
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
def test_a_pipe_that_nobody_reads_any_more_is_one_error(tmp_path):
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
    # nothing but the header got through; the queue itself counts the batch that was refused
    assert context.ledger.get("failed_exporter") == 1000 + 2 + 2


@pytest.fixture
def to_stdout(tmp_path):
    """A command that writes a trace of 10,000 faults to standard output."""
    recorded(tmp_path / "in.wst", 10_000)
    return [*WSTRACE, "convert", str(tmp_path / "in.wst"), "-o", "-"]


def test_standard_output_is_a_trace_but_not_on_a_terminal(tmp_path, to_stdout):
    out = subprocess.run(to_stdout, capture_output=True, timeout=60)
    (tmp_path / "x.wst").write_bytes(out.stdout)
    with open_trace(str(tmp_path / "x.wst")) as trace:
        assert trace.clean
        assert trace.rows["page_fault"] == 10_000
    pty = pytest.importorskip("pty", reason="only on systems with terminals")
    master, slave = pty.openpty()
    shown = subprocess.run(to_stdout, stdout=slave, stderr=subprocess.PIPE, timeout=60)
    os.close(slave)
    os.close(master)
    assert b"standard output is a terminal" in shown.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes standard output there no more than this")
def test_standard_output_that_is_closed_or_without_a_reader_is_named(to_stdout):
    """Where standard output is closed, its number is soon another file's, which gets nothing of the trace."""
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *to_stdout]
    shown = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=60).stderr
    assert shown.splitlines()[-1].endswith("standard output is closed; pipe it, or write -o FILE"), shown
    read, write = os.pipe()
    os.close(read)
    shown = subprocess.run(to_stdout, stdout=write, stderr=subprocess.PIPE, text=True).stderr
    os.close(write)
    assert shown.splitlines()[-1].endswith("standard output: Broken pipe; its reader has ended; write -o FILE"), shown


def test_a_session_that_fails_to_start_leaves_no_file(tmp_path):
    exporter, _ = started(tmp_path / "x.wst")
    exporter.cancel()
    assert not (tmp_path / "x.wst").exists()
    (tmp_path / "x.wst").write_bytes(b"it was there")
    exporter, _ = started(tmp_path / "x.wst", resume=True, force=True)
    exporter.cancel()
    assert (tmp_path / "x.wst").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="plays sudo: needs root")
class TestUnderSudo:
    """As root for a user who, or whose programs, can write in the folder of the output."""

    @pytest.fixture
    def folder(self, open_folder, monkeypatch):
        own = open_folder / "own"
        own.mkdir()
        os.chown(own, 65534, 65534)
        monkeypatch.setenv("SUDO_UID", "65534")
        monkeypatch.setenv("SUDO_GID", "65534")
        return own

    @pytest.fixture
    def victim(self, tmp_path):
        path = tmp_path / "victim"
        path.write_bytes(b"precious")
        yield path
        assert path.read_bytes() == b"precious"
        assert path.stat().st_uid == 0

    @pytest.mark.parametrize("force", [False, True])
    def test_rotation_into_a_planted_part_is_reported(self, folder, victim, force):
        path = folder / "r.wst"
        (folder / "r.0001.wst").symlink_to(victim)
        exporter, context = started(path, rotate_bytes=10_000, force=force)
        everything(exporter, context, 20_000)
        with pytest.raises(
            OutputError, match=r"r\.0001\.wst is a symbolic link; the records since then are in .*/r\.wst"
        ):
            exporter.close()
        assert context.ledger.as_dict() == {}
        with open_trace(str(path)) as trace:
            assert trace.clean
            assert trace.rows["page_fault"] == 20_000
            assert any(mark.get("m") == "rotation" and "symbolic link" in mark["why"] for mark in trace.marks)
        assert path.stat().st_uid == 65534


ROWS = 20_000
EVER = 1 << 30


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """The library that makes calls fail."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (tests/install-peers)")
    made = tmp_path_factory.mktemp("shim") / "failing_disk.so"
    source = Path(__file__).parents[1] / "kit" / "failing_disk.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "x.wst"
    recorded(path, ROWS)
    return path


@pytest.fixture(scope="module")
def cut(whole):
    """A file whose end is missing, with most of its rows."""
    path = whole.with_name("cut.wst")
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size * 3 // 4])
    return path


def rows_of(path: Path) -> int:
    with open_trace(str(path)) as trace:
        return trace.rows.get("page_fault", 0)


UNSAFE = "may not survive a power failure: {} failed: Input/output error"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: LD_PRELOAD")
@pytest.mark.parametrize("way", ["one file", "parts", "resumed", "recovered"])
@pytest.mark.parametrize(
    ("call", "error", "first", "last", "said"),
    [
        *[("write", error, 0, EVER, "failing.") for error in (errno.EIO, errno.ENOSPC, errno.EROFS)],
        ("write", errno.EIO, 4, EVER, "failing."),
        ("write", errno.EIO, 1, 2, ""),
        ("write", errno.EINTR, 0, 3, ""),
        ("short", 0, 0, EVER, ""),
        ("ftruncate", errno.EIO, 0, EVER, "failing."),
        ("fsync", errno.EIO, 0, EVER, UNSAFE.format("fsync")),
        ("close", errno.EIO, 0, EVER, UNSAFE.format("close")),
    ],
)
def test_a_call_that_fails_is_one_line_or_costs_nothing(
    shim, whole, cut, tmp_path, way, call, error, first, last, said
):
    path, expected = tmp_path / "failing.wst", ROWS
    options = {"one file": "", "parts": ",rotate_bytes=16384", "resumed": ",resume=true"}
    words = [whole, "-e", f"msgpack:path={path}{options.get(way, '')}"]
    if way == "resumed":
        shutil.copy(cut, path)
        expected += rows_of(cut)
    elif way == "recovered":
        words, expected = [cut, "-o", path], rows_of(cut)
    fail = {"CALL": call, "ERROR": error, "FROM": first, "TO": last}
    environment = {"LD_PRELOAD": str(shim), **{f"FAIL_{name}": str(n) for name, n in fail.items()}}
    run = wstrace("convert", *words, environment=environment)
    lines = run.stderr.splitlines()
    assert run.returncode in (0, 123), lines
    assert len(lines) == (run.returncode != 0 or way == "recovered"), lines
    assert "internal error" not in run.stderr
    if way == "one file":
        assert bool(run.returncode) == bool(said), lines
    if run.returncode:
        assert said in run.stderr or way == "resumed"
        assert "failing." in run.stderr
    if way == "resumed":
        assert rows_of(path) >= rows_of(cut), "what was there before is not lost"
    if not run.returncode or (call in ("fsync", "close") and way != "resumed"):
        assert rows_of(path) == expected
    elif path.exists() and not wstrace("info", path).returncode:
        with open_trace(str(path)) as trace:
            rows = trace.rows.get("page_fault", 0)
            assert rows == expected or trace.state in ("incomplete", "cut", "damaged")
            assert trace.state != "incomplete" or rows + trace.missing >= expected


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: LD_PRELOAD")
@pytest.mark.parametrize("call", ["write", "fsync", "close", "ftruncate", "linkat"])
@pytest.mark.parametrize("first", [0, 2])
def test_no_output_is_half_and_none_is_called_whole(shim, whole, tmp_path, call, first):
    for suffix in ("csv", "jsonl", "parquet", "arrow", "pb.gz", "pftrace", "folded", "html", "wst"):
        path = tmp_path / f"failing.{suffix}" / f"x.{suffix}"  # all that lies there fails, and the folder itself
        path.parent.mkdir()
        fail = {"FAIL_CALL": call, "FAIL_ERROR": errno.EIO, "FAIL_FROM": first, "FAIL_TO": EVER}
        environment = {"LD_PRELOAD": str(shim), **{name: str(value) for name, value in fail.items()}}
        run = wstrace("convert", whole, "-o", path, environment=environment)
        assert run.returncode in (0, 123), run.stderr
        assert len(run.stderr.splitlines()) == 1, run.stderr
        assert "internal error" not in run.stderr
        left = [one.name for one in path.parent.iterdir()]
        assert left in ([], [path.name]), run.stderr
        if left and (run.returncode == 0 or call in ("fsync", "close")):
            good = tmp_path / path.name
            assert wstrace("convert", whole, "-o", good).returncode == 0
            if suffix != "wst":
                assert path.read_bytes() == good.read_bytes()
            else:
                assert rows_of(path) == ROWS
            good.unlink()


class Disk:
    """os.write with a disk that has so many bytes left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1 << 60
        self._write, self._truncate = os.write, os.ftruncate
        monkeypatch.setattr(osfile.os, "write", self.write)
        monkeypatch.setattr(osfile.os, "ftruncate", self.ftruncate)

    def write(self, fd: int, data: object) -> int:
        view = memoryview(data)[: self.left]
        if not view:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= len(view)
        return self._write(fd, view)

    def ftruncate(self, fd: int, size: int) -> None:
        self.left += os.fstat(fd).st_size - size
        self._truncate(fd, size)


def test_a_full_disk_never_leaves_half_a_frame_and_what_it_loses_is_counted(tmp_path, monkeypatch):
    path, disk = tmp_path / "x.wst", Disk(monkeypatch)
    exporter, context = started(path)
    everything(exporter, context, 5000)
    exporter.flush(1)
    disk.left = 1000  # some of the next frame
    everything(exporter, context, 5000)
    exporter.flush(1)
    with open_trace(str(path)) as trace:
        assert trace.damage()["lost_bytes"] == 0
        assert trace.rows["page_fault"] == 5000
    dropped = context.ledger.get("failed_exporter", "msgpack")
    assert dropped >= 5000
    disk.left = 1 << 60
    everything(exporter, context, 5000)
    with pytest.raises(OutputError, match=f"lacks {dropped:,} records: No space left on device"):
        exporter.close()
    with open_trace(str(path)) as trace:
        assert (trace.clean, trace.state, trace.missing) == (True, "incomplete", dropped)
        assert trace.damage()["lost_names"] == 0
        lost = sum(sum(mark["lost"].values()) for mark in trace.marks if mark["m"] == "lost")
        assert lost == trace.ledger.get("failed_exporter") == dropped
        assert trace.rows["page_fault"] == 10_000
