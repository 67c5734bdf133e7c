"""What the tests of the daemon share: a source that faults for ever, and a daemon that runs on a thread."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from wstrace.batch import Batch
from wstrace.clock import now_ns
from wstrace.errors import Unavailable
from wstrace.interfaces import Context, Source
from wstrace.plugins import Plugins
from wstrace.schema import PAGE_FAULT
from wstrace_plugins.daemon.daemon import NodeDaemon


class Faulting(Source):
    """Faults so many times a drain; of them it records one out of as many as it is asked to.

    Args:
        faults: a drain. fails: what start() says, or "". spins: CPU seconds of a drain.
    """

    name = "faulting"
    streams = (PAGE_FAULT,)

    def __init__(self, *, faults: int = 10, fails: str = "", spins: float = 0.0) -> None:
        self._faults, self._fails, self._spins, self._every = faults, fails, spins, 1

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
        time.sleep(0.01)
        rows = max(1, self._faults // self._every)
        columns: dict[str, Any] = {name: np.full(rows, 7, np.uint32) for name in ("pid", "tid")}
        columns |= {name: np.arange(rows, dtype=np.uint64) for name in ("pc", "va")}
        columns |= {"time_ns": np.full(rows, now_ns(), np.uint64), "flags": np.zeros(rows, np.uint8)}
        if self._every > 1:
            columns["sampled"] = np.full(rows, self._every, np.uint32)
        yield Batch(PAGE_FAULT, columns, source=self.name, strings=self._strings)

    def stop(self) -> Iterable[Batch]:
        return ()


def plugins() -> Plugins:
    """All plugins, and the source `faulting`."""
    found = Plugins()
    found._offered("source")[Faulting.name] = "tests", Faulting
    return found


class Running:
    """A daemon on a thread, the lines that it said, and its end."""

    def __init__(self, path: str) -> None:
        self.lines: list[str] = []
        self.node = NodeDaemon(path, plugins(), self.lines.append)
        self.error: BaseException | None = None
        self._ready = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.node.run(self._ready.set)
        except BaseException as error:
            self.error = error
        self._ready.set()

    def begin(self) -> None:
        self.thread.start()
        assert self._ready.wait(60)

    def end(self) -> None:
        self.node.end()
        self.thread.join(60)
        assert not self.thread.is_alive()

    def ask(self, path: str = "/") -> tuple[int, str]:
        host, _, port = self.node.address.rpartition(":")
        asking = http.client.HTTPConnection(host, int(port), timeout=30)
        with contextlib.closing(asking):
            asking.request("GET", path)
            answer = asking.getresponse()
            return answer.status, answer.read().decode()

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask()[1])
        return found

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not true():
            assert time.monotonic() < end, (self.lines, self.error)
            time.sleep(0.05)


@contextlib.contextmanager
def daemon(path: object) -> Iterator[Running]:
    """A running daemon with these settings, ended behind the block."""
    running = Running(str(path))
    running.begin()
    try:
        yield running
    finally:
        running.end()
