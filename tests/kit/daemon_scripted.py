"""What the tests of the daemon share: a source that faults for ever, an exporter that fails, and a running daemon."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kit.command_line import WSTRACE
from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.errors import Unavailable
from wstrace.hookspecs import hookimpl
from wstrace.interfaces import Context, Exporter, Source
from wstrace.plugins import Plugins
from wstrace.schema import PAGE_FAULT


class Faulting(Source):
    """Faults so many times a drain; of them it records one out of as many as it was set to.

    Args:
        faults: a drain. fails: what start() says, or "". spins: CPU seconds of a drain. grows: MiB that a drain keeps.
    """

    name = "faulting"
    streams = (PAGE_FAULT,)

    def __init__(self, *, faults: int = 10, fails: str = "", spins: float = 0.0, grows: int = 0) -> None:
        self._faults, self._fails, self._spins, self._every, self._grows = faults, fails, spins, 1, grows
        self._kept = []

    def start(self, context: Context) -> None:
        if self._fails:
            raise Unavailable(self._fails, "mend it")
        self._strings = context.strings

    def record_one_in(self, every: int) -> bool:
        self._every = every
        return True

    def drain(self, timeout: float) -> Iterable[Batch]:
        until = time.thread_time() + self._spins / self._every
        while time.thread_time() < until:
            pass
        self._kept.append(np.ones(self._grows << 20, np.uint8))
        time.sleep(0.01 if not self._grows else 0.1)
        rows = max(1, self._faults // self._every)
        columns = {name: np.full(rows, 7, np.uint32) for name in ("pid", "tid")}
        columns |= {name: np.arange(rows, dtype=np.uint64) for name in ("pc", "va")}
        columns |= {"time_ns": np.full(rows, now_ns(), np.uint64), "flags": np.zeros(rows, np.uint8)}
        if self._every > 1:
            columns["sampled"] = np.full(rows, self._every, np.uint32)
        yield Batch(PAGE_FAULT, columns, source=self.name, strings=self._strings)

    def stop(self) -> Iterable[Batch]:
        return ()


class Full(Exporter):
    """Fails as on a full disk."""

    name = "full"

    def export(self, batch: Batch) -> None:
        raise OSError(28, "No space left on device")


@hookimpl
def wstrace_sources() -> Sequence[type[Source]]:
    return [Faulting]


@hookimpl
def wstrace_exporters() -> Sequence[type[Exporter]]:
    return [Full]


def plugins() -> Plugins:
    """All plugins, and the source `faulting`."""
    found = Plugins()
    found._offered("source")[Faulting.name] = "tests", Faulting
    return found


class Running:
    """A daemon with these settings, the lines that it said, and its end."""

    def __init__(self, path: Path, **environ: str) -> None:
        about = path.parent / "installed" / "faulting-1.0.dist-info"
        about.mkdir(parents=True, exist_ok=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: faulting\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[wstrace]\nfaulting = kit.daemon_scripted\n")
        found = os.pathsep.join([str(about.parent), str(Path(__file__).parent.parent)])
        self.process = subprocess.Popen(
            [*WSTRACE, "daemon", "--config", path],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": found, **environ},
        )
        self.lines = []
        self._ready = threading.Event()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        assert self._ready.wait(120)

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.removeprefix("wstrace: ").rstrip("\n"))
            if "tracing" in line:
                self._ready.set()
        self._ready.set()

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(120)
        self._reading.join(60)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    def ask(self, path: str = "/") -> tuple[int, str]:
        (address,) = [found[1] for line in self.lines if (found := re.search(r"its state: (.*)", line))]
        while True:
            # a connection ends when it executes itself anew before it has answered
            asking = http.client.HTTPConnection(address, timeout=30)
            with contextlib.suppress(ConnectionError), contextlib.closing(asking):
                asking.request("GET", path)
                answer = asking.getresponse()
                return answer.status, answer.read().decode()
            assert self.process.poll() is None, self.lines

    def facts(self) -> dict[str, Any]:
        return json.loads(self.ask()[1])

    def until(self, true: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, (self.lines, self.process.poll())
            time.sleep(0.05)


@contextlib.contextmanager
def daemon(path: Path, lacks: str = "") -> Iterator[Running]:
    """A running daemon with these settings; behind the block it has ended, whole or with a line of what it lacks."""
    running = Running(path)
    try:
        yield running
    finally:
        code = running.end()
    assert code == (123 if lacks else 0), running.lines
    assert lacks in running.lines[-1] if lacks else running.lines[-1] == "ended", running.lines
