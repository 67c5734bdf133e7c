"""Tracing for the live tests: a launched or attached target, its batches, and programs that touch known pages."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.cgroups import made_cgroup

from wstrace.batch import Batch
from wstrace.interfaces import Context, Usage
from wstrace.schema import SPACE_UNMAP

if sys.platform != "linux":
    collect_ignore_glob = ["test_capture*.py"]

#: touches N pages of fresh memory one after the other, of memory that is populated, or so often; prints the address
TOUCH = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    size_t n = strtoul(argv[1], 0, 10), page = sysconf(_SC_PAGESIZE);
    int populate = argc > 2 && !strcmp(argv[2], "populate") ? MAP_POPULATE : 0;
    int rounds = argc > 2 && !populate ? atoi(argv[2]) : 1;
    char *p = mmap(0, n * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | populate, -1, 0);
    madvise(p, n * page, MADV_NOHUGEPAGE);
    for (; rounds; rounds--) {
        for (size_t i = 0; i < n; i++) ((volatile char *)p)[i * page + i % page] = 1;
        if (rounds > 1) madvise(p, n * page, MADV_DONTNEED);
    }
    printf("%lu\n", (unsigned long)p);
    return 0;
}
"""


@dataclass
class Trace:
    """What a source gave of a target."""

    context: Context
    source: Any
    batches: list[Batch] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    stopped: bool = False

    def drain(self, until: Callable[[], bool]) -> None:
        """Until that is so."""
        deadline = time.monotonic() + 60
        while not until() and time.monotonic() < deadline:
            self.batches += self.source.drain(0.1)

    def stop(self) -> None:
        """The rest, once."""
        if not self.stopped:
            self.stopped = True
            self.batches += self.source.stop()
            self.usage = self.context.targets[0].usage()
            for target in self.context.targets:
                target.close()

    def column(self, stream: str, name: str) -> Any:
        parts = [batch[name] for batch in self.batches if batch.schema.name == stream]
        return np.concatenate(parts) if parts else np.zeros(0, "<u8")

    def faults(self, **where: Any) -> Any:
        """PAGE_FAULT rows as a structured array."""
        names = ("time_ns", "pid", "tid", "pc", "va", "flags")
        table = np.rec.fromarrays([self.column("page_fault", name) for name in names], names=[*names[:5], "bits"])
        for name, value in where.items():
            table = table[table[name] == value]
        return table

    def faults_since_mapped(self, start: int, end: int) -> Any:
        """Rows of faults in the mapping that lies there last.

        Another one may have lain there before: a mapping of one page gets the last page of where ld.so had its cache
        of libraries, and in one of fifty starts, as addresses are random, the kernel had not brought that page with
        those around it.
        """
        maps = [self.column("address_space", name) for name in ("time_ns", "start", "end", "event")]
        made = max(t for t, a, b, event in zip(*maps, strict=True) if a <= start < b and event != SPACE_UNMAP)
        faults = self.faults()
        return faults[(faults.va >= start) & (faults.va < end) & (faults.time_ns >= made)]

    def processes(self, event: int) -> Any:
        rows = np.rec.fromarrays(
            [self.column("process", n) for n in ("time_ns", "pid", "ppid", "tid", "name", "code", "event")],
            names=["time_ns", "pid", "ppid", "tid", "name", "code", "event"],
        )
        return rows[rows.event == event]

    def ledger(self, stage: str, who: str | None = None) -> int:
        return self.context.ledger.get(stage, who)

    def assert_balanced(self, *, others: bool = False) -> None:
        """recorded + lost + foreign = counted, nothing unaccounted, for minor and major; but what others displaced."""
        flags = self.column("page_fault", "flags")
        for kind, recorded in (("major", int((flags & 1).sum())), ("minor", int((flags & 1 == 0).sum()))):
            gone = sum(self.ledger(stage, kind) for stage in ("lost_kernel", "foreign_clock", "unaccounted"))
            assert recorded + gone == self.ledger("counted", kind), kind
            assert others or self.ledger("unaccounted", kind) == 0

    def assert_ordered(self) -> None:
        """Time-ordered but for what the ledger calls late."""
        times = self.column("page_fault", "time_ns").astype("<i8")
        assert int((np.diff(times) < 0).sum()) <= self.ledger("late")


@pytest.fixture(scope="session")
def full_level():
    """Skips what needs the level `full` where this machine or privilege does not give it."""
    from wstrace_plugins.page_faults.linux.backend import PageFaults

    level = PageFaults.probe()
    if level.name != "full":
        pytest.skip(f"page faults of level full: {level.why}; {level.remedy}")


@pytest.fixture(scope="session")
def python_stacks():
    """Skips what needs the programs in the kernel where it refuses them."""
    from wstrace_plugins.page_faults.linux.python_stacks.kernel import tried

    found = tried()
    if found.name != "exact":
        pytest.skip(f"Python stacks: {found.why}; {found.remedy}")


@pytest.fixture
def trace():
    """trace([command, ...], **options): runs the command under the source until it ends."""
    from wstrace_plugins.os.linux.backend import platform
    from wstrace_plugins.page_faults.linux.backend import PageFaults

    def run(command: Sequence[str], *, user: str | None = None, slow: bool = False, **options: Any) -> Trace:
        target = platform().launch([str(word) for word in command], user=user)
        traced = Trace(Context(targets=(target,)), PageFaults(**options))
        traced.source.start(traced.context)
        try:
            target.resume()
            if slow:  # a tracer that does not get to run
                target.wait(60)
            traced.drain(lambda: target.wait(0) is not None)
        finally:
            traced.stop()
        return traced

    return run


@pytest.fixture
def attach():
    """attach(pid, **options): a started Trace of a running process; whatever is not stopped is in the end."""
    from wstrace_plugins.os.linux.backend import platform
    from wstrace_plugins.page_faults.linux.backend import PageFaults

    made = []

    def start(pid: int, *, own_threads: Collection[int] = (), **options: Any) -> Trace:
        context = Context(targets=(platform().attach(pid),))
        for thread in own_threads:
            context.register_own_thread(thread)
        trace = Trace(context, PageFaults(**options))
        try:
            trace.source.start(context)
        except BaseException:
            context.targets[0].close()
            raise
        made.append(trace)
        return trace

    yield start
    for trace in made:
        trace.stop()


@pytest.fixture
def cgroup():
    """A new cgroup of its own."""
    with made_cgroup() as made:
        yield made


@pytest.fixture(scope="session")
def touch():
    """The compiled TOUCH, where every user may execute it: pytest's own folders are closed to others."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (tests/install-peers)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "touch.c").write_text(TOUCH)
        subprocess.run(["gcc", "-O1", "-o", folder / "touch", folder / "touch.c"], check=True)
        yield folder / "touch"


class Child:
    """A Python program that waits for lines of ours."""

    def __init__(self, code: str, **options: Any) -> None:
        self.process = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, **options)  # fmt: skip
        self.pid = self.process.pid

    def read(self) -> str:
        return self.process.stdout.readline().strip()

    def say(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def child():
    made = []

    def start(code, **options):
        made.append(Child(code, **options))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.communicate()
