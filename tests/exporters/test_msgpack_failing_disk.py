"""System calls of the disk that fail, one by one, in a process of its own: one line, 123 or a whole trace."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import wstrace
from msgpack_scripted import recorded

from wstrace_exporters.msgpack.read.trace import open_trace

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: LD_PRELOAD")]
ROWS = 20_000
EVER = 1 << 30


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes calls fail."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (tests/install-peers)")
    made = tmp_path_factory.mktemp("shim") / "failing_disk.so"
    source = Path(__file__).parents[1] / "kit" / "failing_disk.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "x.wst"
    recorded(path, ROWS)
    return path


@pytest.mark.parametrize(
    ("call", "error", "first", "last", "code", "told"),
    [
        *[("write", error, 0, EVER, 123, "failing.wst") for error in (errno.EIO, errno.ENOSPC, errno.EROFS)],
        *[("write", errno.EIO, n, EVER, 123, "failing.wst") for n in (1, 5, 8)],
        *[("write", errno.EIO, n, n + 1, 0, "") for n in (1, 5, 8)],
        *[("write", errno.EINTR, n, n + 3, 0, "") for n in (0, 5)],
        ("short", 0, 0, EVER, 0, ""),
        ("ftruncate", errno.EIO, 0, EVER, 123, "cannot write"),
        ("fsync", errno.EIO, 0, EVER, 123, "may not survive a power failure: fsync failed: Input/output error"),
        ("fsync", errno.EIO, 0, 1, 123, "may not survive a power failure: fsync failed: Input/output error"),
        ("close", errno.EIO, 0, EVER, 123, "may not survive a power failure: close failed: Input/output error"),
        ("close", errno.EINTR, 0, EVER, 0, ""),
    ],
)
def test_a_call_that_fails_is_one_line_or_costs_nothing(shim, whole, tmp_path, call, error, first, last, code, told):
    path = tmp_path / "failing.wst"
    fail = {"CALL": call, "ERROR": error, "FROM": first, "TO": last}
    environment = {"LD_PRELOAD": str(shim), **{f"FAIL_{name}": str(n) for name, n in fail.items()}}
    run = wstrace("convert", whole, "-e", f"msgpack:path={path}", environment=environment)
    said = run.stderr.strip().splitlines()
    assert run.returncode == code, said
    assert len(said) == (code != 0), said
    assert "internal error" not in run.stderr
    assert told in run.stderr
    assert code == 0 or str(path) in run.stderr
    assert "0 records" not in run.stderr.replace("000 records", "")
    if code == 0 or call in ("fsync", "close"):
        with open_trace(str(path), scan=True) as trace:
            assert trace.state == "clean"
            assert trace.rows["page_fault"] == ROWS
    if call == "ftruncate":
        assert not path.exists()
