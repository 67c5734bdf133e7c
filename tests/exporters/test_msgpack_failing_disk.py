"""Disks that fail: system calls one by one in a process of its own, and a disk that is full and has room again."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit.command_line import wstrace
from kit.msgpack_scripted import everything, recorded, started

from wstrace.errors import OutputError
from wstrace_exporters.msgpack.format import osfile
from wstrace_exporters.msgpack.read.trace import open_trace

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


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def test_a_full_disk_never_leaves_half_a_frame_and_what_it_loses_is_counted(tmp_path, disk):
    path = tmp_path / "x.wst"
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


@pytest.mark.parametrize(("left", "state"), [(10, "cut"), (8000, "incomplete")])
def test_a_disk_that_stays_full_is_an_error_at_the_end_and_the_file_reads(tmp_path, disk, left, state):
    """Where the rows do not fit, the end may."""
    path = tmp_path / "x.wst"
    exporter, context = started(path)
    everything(exporter, context, 5000)
    exporter.flush(1)
    disk.left = left
    everything(exporter, context, 30_000)
    with pytest.raises(OutputError, match=r"No space left on device"):
        exporter.close()
    assert context.info.saved == ""
    assert context.ledger.get("failed_exporter") >= 30_000
    with open_trace(str(path)) as trace:
        assert trace.state == state
        assert trace.damage()["lost_bytes"] == 0
        assert trace.rows["page_fault"] == 5000
        assert state == "cut" or trace.missing == context.ledger.get("failed_exporter")
