"""A disk that fails (tests/kit/failing_disk.c) where a trace file has parts, is resumed, recovered, or holds rows."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import wstrace
from msgpack_scripted import recorded

from wstrace.cli import main
from wstrace_exporters.msgpack.read.trace import open_trace

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: LD_PRELOAD")]
ROWS = 20_000
EVER = 1 << 30
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """failing(call, error, first, last, *words): a command whose calls fail from the first to before the last."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (tests/install-peers)")
    made = tmp_path_factory.mktemp("shim") / "failing_disk.so"
    source = Path(__file__).parents[1] / "kit" / "failing_disk.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)

    def run(call: str, error: int, first: int, last: int, *words: object) -> subprocess.CompletedProcess[str]:
        fail = {"CALL": call, "ERROR": error, "FROM": first, "TO": last}
        environment = {"LD_PRELOAD": str(made), **{f"FAIL_{name}": str(n) for name, n in fail.items()}}
        return wstrace(*words, environment=environment)

    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "x.wst"
    recorded(path, ROWS)
    return path


@pytest.fixture(scope="module")
def cut(whole: Path) -> Path:
    """A file whose end is missing, with most of its rows."""
    path = whole.with_name("cut.wst")
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size * 3 // 4])
    return path


def _lost(found: list[dict[str, Any]]) -> int:
    return int(found[-1]["ledger"]["failed_lane:msgpack"])


def rows_of(path: Path) -> int:
    with open_trace(str(path), scan=True) as trace:
        return trace.rows.get("page_fault", 0)


FAILURES = [
    *[("write", error, 0, EVER) for error in (errno.EIO, errno.ENOSPC, errno.EROFS)],
    *[("write", errno.EIO, n, EVER) for n in (1, 2, 4, 9)],
    *[("write", errno.EIO, n, n + 1) for n in (0, 1, 2, 4, 9)],
    *[("write", errno.EINTR, n, n + 3) for n in (0, 3)],
    ("short", 0, 0, EVER),
    *[("ftruncate", errno.EIO, n, EVER) for n in (0, 1)],
    *[("fsync", errno.EIO, n, EVER) for n in (0, 1)],
    *[("close", errno.EIO, n, EVER) for n in (0, 1)],
]
ways = pytest.mark.parametrize(("call", "error", "first", "last"), FAILURES)


def assert_told(run: subprocess.CompletedProcess[str], path: Path, expected: int, whole_state: str = "clean") -> None:
    """One line and 123, or nothing and every row; what is there can be read, and its file says what it lacks."""
    said = run.stderr.strip().splitlines()
    assert run.returncode in (0, 123), said
    assert len(said) == (run.returncode != 0), said
    assert "internal error" not in run.stderr
    assert "Traceback" not in run.stderr
    if run.returncode:
        assert "failing" in said[0]
    there = path.exists() and path.stat().st_size > 0
    if run.returncode == 0:
        with open_trace(str(path), scan=True) as trace:
            assert (trace.state, trace.rows["page_fault"]) == (whole_state, expected)
    elif there and not main(["info", str(path)]):
        with open_trace(str(path), scan=True) as trace:
            rows = trace.rows.get("page_fault", 0)
            assert rows <= expected
            if rows < expected:
                assert trace.state in ("incomplete", "cut", "damaged")
            if trace.state == "incomplete":
                assert rows + trace.missing >= expected


@ways
def test_parts(failing: Run, whole: Path, tmp_path: Path, call: str, error: int, first: int, last: int) -> None:
    path = tmp_path / "failing.wst"
    run = failing(call, error, first, last, "convert", whole, "-e", f"msgpack:path={path},rotate_bytes=16384")
    if not run.returncode and (call, error) != ("write", errno.EIO):  # after a failure all waits for a second
        assert len(list(tmp_path.iterdir())) > 1
    assert_told(run, path, ROWS)


@ways
def test_resume(
    failing: Run, cut: Path, whole: Path, tmp_path: Path, call: str, error: int, first: int, last: int
) -> None:
    path = tmp_path / "failing.wst"
    shutil.copy(cut, path)
    before = rows_of(path)
    run = failing(call, error, first, last, "convert", whole, "-e", f"msgpack:path={path},resume=true")
    assert_told(run, path, before + ROWS, "incomplete")  # what the session before lost is not known
    assert rows_of(path) >= before, "what was there before is not lost"


@ways
def test_recover(failing: Run, cut: Path, tmp_path: Path, call: str, error: int, first: int, last: int) -> None:
    path = tmp_path / "failing.wst"
    run = failing(call, error, first, last, "convert", cut, "-o", path)
    expected = rows_of(cut)
    if run.returncode:
        assert_told(run, path, expected)
        return
    assert rows_of(path) == expected
    assert " was cut: " in run.stderr
    assert len(run.stderr.splitlines()) == 1
