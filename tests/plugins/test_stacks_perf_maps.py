"""Perf maps: the later line wins, hostile lines cost nothing, and only the process's own map is believed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstrace_plugins.stacks.linux import perf_maps
from wstrace_plugins.stacks.linux.perf_maps import PerfMap


@pytest.fixture
def target():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()
    path_of(process.pid).unlink(missing_ok=True)


def path_of(pid: int) -> Path:
    return Path(f"/tmp/perf-{pid}.map")


def read(text: bytes, pid: int) -> PerfMap:
    path_of(pid).write_bytes(text)
    found = PerfMap(pid, 0)
    assert found.grow()
    return found


def test_a_map_grows(target):
    found = read(b"1000 10 first\n2000 10 sec", target.pid)
    assert found.name(0x2000) is None
    with path_of(target.pid).open("ab") as file:
        file.write(b"ond\n")
    assert found.grow()
    assert found.name(0x2000) == "second"
    assert not found.grow()
    found.close()


@given(st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=12), min_size=1, max_size=8))
@settings(max_examples=60)
def test_of_all_lines_that_cover_an_address_the_last_one_names_it(pieces):
    """Against the plain statement, however the map grew."""
    path, lines = path_of(os.getpid()), []
    path.write_bytes(b"")
    found = PerfMap(os.getpid(), 0)
    try:
        for piece in pieces:
            with path.open("ab") as file:
                for start, size in piece:
                    lines.append((start, size, f"f{len(lines)}"))
                    file.write(b"%x %x f%d\n" % (start, size, len(lines) - 1))
            assert found.grow() == bool(piece)
        for address in range(55):
            names = [name for start, size, name in lines if start <= address < start + size]
            assert found.name(address) == (names[-1] if names else None)
    finally:
        found.close()
        path.unlink()


def test_lines_that_lie_are_left_out(target, monkeypatch):
    monkeypatch.setattr(perf_maps, "MOST_LINES", 100)
    text = (
        b"x y z\n-1 10 a\n1000 0 b\n1000 ffffffffffffffffff c\n" + b"ffffffffffffffff 10 d\n" + b"\xff" * 5000 + b"\n"
    )
    found = read(text + b"1000 10 " + b"n" * 5000 + b"\n", target.pid)
    assert found.name(0x1000) == "n" * 1024
    found.close()
    many = read(b"".join(b"%x 8 f%d\n" % (4096 + 16 * n, n) for n in range(1000)), target.pid)
    assert many.name(4096 + 16 * 50) == "f50"
    assert many.name(4096 + 16 * 500) is None
    many.close()


def test_a_map_of_another_user_is_not_believed(target):
    if os.geteuid():
        pytest.skip("only on a system where we are root: gives a file away")
    path_of(target.pid).write_bytes(b"1000 10 evil\n")
    os.chown(path_of(target.pid), 12345, 12345)
    assert not PerfMap(target.pid, 0).grow()


def test_a_map_of_an_older_process_with_that_pid_is_not_believed(target):
    path_of(target.pid).write_bytes(b"1000 10 old\n")
    past = time.time() - 3600
    os.utime(path_of(target.pid), (past, past))
    assert not PerfMap(target.pid, 0).grow()


def test_a_link_or_a_pipe_in_its_place_is_not_opened(target, tmp_path):
    (tmp_path / "secret").write_bytes(b"1000 10 secret\n")
    path_of(target.pid).symlink_to(tmp_path / "secret")
    assert not PerfMap(target.pid, 0).grow()
    path_of(target.pid).unlink()
    os.mkfifo(path_of(target.pid))
    assert not PerfMap(target.pid, 0).grow()


def test_of_a_process_that_has_ended_a_map_of_our_own_user_is_believed(target):
    target.kill()
    os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which has no root any more
    began = time.monotonic_ns()
    path_of(target.pid).write_bytes(b"1000 10 own\n")
    found = PerfMap(target.pid, began)
    assert found.grow()
    assert found.name(0x1000) == "own"
    found.close()
    assert not PerfMap(target.pid, time.monotonic_ns() + 10**10).grow(), "older than the process"
    if not os.geteuid():
        os.chown(path_of(target.pid), 12345, 12345)
        assert not PerfMap(target.pid, began).grow()
