"""Programs no one here wrote, as targets and as oracles: stress-ng, redis-server, pmap. See tests/README.md."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.stopped_process import rollup

import wstrace
from wstrace.errors import TargetExited

pytestmark = [pytest.mark.peers, pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: /proc/PID/pagemap")]


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: see tests/README.md")
    return found


LONG = pytest.param("--mmapfork 1", marks=pytest.mark.long)  # it takes half of the free memory


@pytest.mark.parametrize("stressor", ["--fault 1", "--mmap 1 --mmap-bytes 64m", "--fork 2", LONG])
def test_stress_ng(stressor):
    """Processes that map, unmap, fork and die: every answer is a snapshot or a clear word; stopped ones agree."""
    from wstrace_plugins.os.linux.procfs import descendants

    command = [program("stress-ng"), *stressor.split(), "--timeout", "15", "--quiet", "--temp-path", "/tmp"]
    with subprocess.Popen(command, start_new_session=True) as stress:
        try:
            read = compared = 0
            until = time.monotonic() + 2
            while time.monotonic() < until or ((compared < 3 or read <= 10) and time.monotonic() < until + 10):
                for pid in descendants(stress.pid):
                    with contextlib.suppress(TargetExited):
                        read += wstrace.working_set(pid).total_bytes > 0
                        compared += _agrees_stopped(pid)
            assert read > 10
            assert compared >= 3
        finally:
            for pid in (stress.pid, *descendants(stress.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _agrees_stopped(pid: int) -> bool:
    """Stops it and compares; False when it died or a child of it still changed its sharing."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(100):
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                    break
                time.sleep(0.001)
            before = rollup(pid)
            taken = wstrace.working_set(pid)
            if before != rollup(pid):
                return False
        finally:
            os.kill(pid, signal.SIGCONT)
        assert taken.total_bytes == before["Rss"]
        assert taken.private_bytes == before["Private_Clean"] + before["Private_Dirty"]
        assert taken.swapped_bytes >= before["Swap"]
        return True
    return False


class Redis:
    """A redis-server on a unix socket; its log on a file."""

    def __init__(self, folder: Path) -> None:
        self.log, self._path = folder / "log", str(folder / "socket")
        options = {"port": "0", "unixsocket": self._path, "dir": str(folder), "save": "", "logfile": str(self.log),
                   "rdb-key-save-delay": "20", "enable-debug-command": "yes"}  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.process = subprocess.Popen([program("redis-server"), *words])
        for _ in range(200):
            with contextlib.suppress(OSError):
                self._connection = socket.socket(socket.AF_UNIX)
                self._connection.connect(self._path)
                return
            self._connection.close()
            time.sleep(0.05)
        raise TimeoutError(self.log.read_text())

    def ask(self, *words: str) -> bytes:
        parts = [f"${len(word)}\r\n{word}\r\n" for word in words]
        self._connection.sendall((f"*{len(words)}\r\n" + "".join(parts)).encode())
        return self._connection.recv(65_536)

    def close(self) -> None:
        self._connection.close()
        self.process.kill()
        self.process.wait()


def test_redis_says_how_much_its_background_save_copied(tmp_path):
    """`Fork CoW for RDB: current 21 MB, peak 21 MB`: what the child has alone, by its own smaps."""
    from wstrace_plugins.os.linux.procfs import descendants

    redis = Redis(tmp_path)
    try:
        assert redis.ask("DEBUG", "POPULATE", "40000", "key", "1000").startswith(b"+OK")
        agreed = wstrace.working_set(redis.process.pid)
        assert abs(agreed.total_bytes - rollup(redis.process.pid)["Rss"]) < 1 << 20
        assert redis.ask("BGSAVE").startswith(b"+Background")
        (child,) = descendants(redis.process.pid)
        alone = []
        for i in range(0, 40_000, 5):
            redis.ask("SETRANGE", f"key:{i}", "0", "x")
            if i % 1000 == 0:
                alone.append(_private_anonymous(child))
        with contextlib.suppress(TargetExited):
            while True:
                alone.append(_private_anonymous(child))
                time.sleep(0.02)
        said = None
        for _ in range(100):
            said = re.search(r"Fork CoW for RDB: current (\d+) MB, peak (\d+) MB", redis.log.read_text())
            if said:
                break
            time.sleep(0.05)
        assert said, redis.log.read_text()
        peak = int(said[2]) << 20
        assert peak > 8 << 20, "the test must have made it copy"
        assert abs(max(alone) - peak) <= 0.1 * peak + (2 << 20), (max(alone), said[0])
    finally:
        redis.close()


def _private_anonymous(pid: int) -> int:
    owners = wstrace.working_set(pid).by("kind")
    return sum(owner.private for owner in owners if owner.kind in ("anon", "heap", "stack"))
