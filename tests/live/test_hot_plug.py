"""CPUs that come online during a trace have no events: the trace says so, and takes their faults for nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cgroups import MadeCgroup

from wstrace.interfaces import Context
from wstrace_plugins.page_faults.linux import hot_plug, perf_event

pytestmark = pytest.mark.usefixtures("full_level")
_ONLINE = Path("/sys/devices/system/cpu")

#: for each line that it reads: goes to that CPU, touches 500 pages there and says so
ON_CPUS = """
import contextlib, mmap, os, sys
print("up", flush=True)
for line in sys.stdin:
    if not line.strip():
        break
    os.sched_setaffinity(0, {int(line)})
    room = mmap.mmap(-1, 500 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        room.madvise(15)  # MADV_NOHUGEPAGE
    for page in range(500):
        room[page * mmap.PAGESIZE] = 1
    print("touched", flush=True)
"""


def touches_on(one: Any, cpu: int) -> None:
    """The program touches 500 pages on that CPU."""
    one.process.stdin.write(f"{cpu}\n")
    one.process.stdin.flush()
    assert one.read() == "touched"


def ends(one: Any) -> None:
    one.say()
    one.process.wait(60)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_cpu_that_came_online_is_told(
    monkeypatch: pytest.MonkeyPatch, attach: Callable[..., Any], child: Callable[..., Any]
) -> None:
    first, later = sorted(os.sched_getaffinity(0))[:2]
    online = [first]
    monkeypatch.setattr(perf_event, "online_cpus", lambda: list(online))
    one = child(ON_CPUS)
    assert one.read() == "up"
    trace = attach(one.pid, stacks="none")
    touches_on(one, first)
    online.append(later)
    touches_on(one, later)
    trace.stop()  # before the target ends, whose own account is gone with it
    assert 500 <= len(trace.faults()) < 1000
    words = f"CPU {later}, which came online during the trace"
    assert trace.context.info.lacking == [f"faults on {words}"]
    [note] = [note for note in trace.context.info.notes if "cause is not known" in note]
    assert f"faults on {words}" in note
    assert int(note.split()[0].replace(",", "")) >= 500


@pytest.fixture
def switch() -> Iterator[Callable[[int, bool], None]]:
    """switch(cpu, on): takes a real CPU of the virtual machine off line and on again; all are on in the end."""
    if os.environ.get("WSTRACE_KERNEL_TESTS") != "1":
        pytest.skip("only on the machine that tests/kernels/run boots: it takes a CPU away from all programs")
    touched: set[int] = set()

    def switched(cpu: int, on: bool) -> None:
        touched.add(cpu)
        (_ONLINE / f"cpu{cpu}/online").write_text("1" if on else "0")

    yield switched
    for cpu in touched:
        switched(cpu, True)


def test_a_thread_is_traced_again_on_a_cpu_that_went_and_came_back(
    switch: Callable[[int, bool], None], attach: Callable[..., Any], child: Callable[..., Any]
) -> None:
    one = child(ON_CPUS)
    assert one.read() == "up"
    trace = attach(one.pid)
    touches_on(one, 1)
    switch(1, False)
    touches_on(one, 0)
    switch(1, True)
    touches_on(one, 1)
    ends(one)
    trace.stop()
    assert len(trace.faults()) >= 1500
    trace.assert_balanced()
    assert not [lack for lack in trace.context.info.lacking if "CPU" in lack]


def test_a_cpu_that_is_switched_on_during_a_trace(
    switch: Callable[[int, bool], None], attach: Callable[..., Any], child: Callable[..., Any]
) -> None:
    switch(1, False)
    one = child(ON_CPUS)
    assert one.read() == "up"
    trace = attach(one.pid)
    touches_on(one, 0)
    switch(1, True)
    touches_on(one, 1)
    ends(one)
    trace.stop()
    trace.assert_balanced()
    assert 500 <= len(trace.faults()) < 1000
    assert "faults on CPU 1, which came online during the trace" in trace.context.info.lacking


def test_all_processes_are_not_traced_again_on_a_cpu_that_came_back(
    switch: Callable[[int, bool], None],
    child: Callable[..., Any],
    cgroup: MadeCgroup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from wstrace_plugins.os.linux.backend import platform
    from wstrace_plugins.page_faults.linux.backend import PageFaults

    one = child(ON_CPUS)
    assert one.read() == "up"
    cgroup.take(one.pid)
    monkeypatch.setattr(hot_plug, "_APART_SECONDS", 0.0)
    context = Context(groups=(platform().group("cgroup", cgroup.path),))
    source = PageFaults(stacks="none")
    source.start(context)
    batches: list[Any] = []
    try:
        touches_on(one, 1)
        batches += source.drain(0.0)
        switch(1, False)
        touches_on(one, 0)
        batches += source.drain(0.0)
        switch(1, True)
        touches_on(one, 1)
        ends(one)
    finally:
        batches += source.stop()
    recorded = sum(len(batch) for batch in batches if batch.schema.name == "page_fault")
    told = [lack for lack in context.info.lacking if "CPU 1" in lack]
    assert recorded >= 1000
    assert bool(told) == (recorded < 1500), (recorded, told)
