"""Service times against a program that times its own faults: each lies between what it waited and what it took."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from other_tracers import beside, writes_maps
from recorded_run import compiled
from slow_file import slow_file

from wstrace.schema import FAULT_MAJOR
from wstrace_plugins.page_faults.linux import perf_event as perf
from wstrace_plugins.page_faults.linux.python_stacks import bpf
from wstrace_plugins.page_faults.linux.service_time import programs
from wstrace_plugins.page_faults.linux.service_time.capture import fault_counts, level

HERE = Path(__file__).parent
SLOW_NS = 2_000_000
pytestmark = pytest.mark.usefixtures("full_level", "python_stacks")


@pytest.fixture(scope="module")
def program(tmp_path_factory: Any) -> Path:
    return compiled(tmp_path_factory.mktemp("truth"), (HERE / "service_truth.c").read_text())


class Timed:
    """A traced run of the program: what it measured of its faults, and the service times of the same faults."""

    def __init__(
        self, trace: Any, folder: Path, program: Path, mode: str, n: int, file: Path | str = "", **options: Any
    ) -> None:
        out = folder / "own"
        self.trace = trace(["sh", "-c", f"exec {program} {mode} {n} {file} > {out}"], service_time=True, **options)
        own = np.array([line.split() for line in out.read_text().splitlines()], "u8")
        self.all = self.trace.column("page_fault", "service_ns")
        times = np.argsort(self.trace.column("page_fault", "time_ns"), kind="stable")
        va = self.trace.column("page_fault", "va")[times]
        order = np.argsort(va, kind="stable")
        at = np.minimum(np.searchsorted(va[order], own[:, 0]), len(va) - 1)
        hit = va[order][at] == own[:, 0]
        self.of_own = int(hit.sum())
        self.took, self.least = own[hit, 1], own[hit, 2]
        self.service = self.all[times][order][at[hit]]
        self.major = self.trace.column("page_fault", "flags")[times][order][at[hit]] & FAULT_MAJOR

    def assert_true(self, most_without: int = 0) -> None:
        """No time is wrong; and of so many faults at most it is not known."""
        known = self.service != 0
        assert int((~known).sum()) <= most_without
        assert (self.service[known] <= self.took[known]).all()
        assert (self.service[known] >= self.least[known]).all()
        self.assert_counted()

    def assert_counted(self) -> None:
        """Each fault has a time, or a reason that is counted."""
        assert int((self.all == 0).sum()) == self.trace.ledger("without_time")


@pytest.mark.parametrize("mode", ["touch", "kernel", "signals"])
def test_the_time_is_within_what_the_access_took(trace: Any, tmp_path: Path, program: Path, mode: str) -> None:
    timed = Timed(trace, tmp_path, program, mode, 2000)
    assert timed.of_own >= 2000
    timed.assert_true(2)
    timed.trace.assert_balanced()
    own = timed.trace.context.info.extra
    assert 0 < own["service_time_noise_ns"] < 1000
    assert 0 < own["service_time_own_ns"] < np.median(timed.service)


def test_of_a_long_fault_it_is_nearly_all(trace: Any, tmp_path: Path, program: Path) -> None:
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not huge.exists() or "[never]" in huge.read_text():
        pytest.skip("no transparent huge pages")
    timed = Timed(trace, tmp_path, program, "huge", 16)
    timed.assert_true()
    assert np.median(timed.service) > 0.75 * np.median(timed.took)


@pytest.mark.parametrize("mode", ["slow", "moved", "two"])
def test_a_handler_that_waits_makes_it_long(trace: Any, tmp_path: Path, program: Path, mode: str) -> None:
    """userfaultfd: the thread sleeps in the fault; is moved to another CPU in it; two threads do, on one CPU."""
    timed = Timed(trace, tmp_path, program, mode, 40)
    assert timed.of_own == 40
    timed.assert_true()
    assert timed.service.min() >= SLOW_NS


def test_a_fault_from_disk_holds_what_the_disk_takes(trace: Any, tmp_path: Path, program: Path) -> None:
    with slow_file(tmp_path, 40, SLOW_NS / 1e9) as file:
        timed = Timed(trace, tmp_path, program, "file", 40, file)
    assert (timed.of_own, int(timed.major.sum())) == (40, 40)
    timed.assert_true()
    assert timed.service.min() >= SLOW_NS
    assert np.median(timed.service) > 0.75 * np.median(timed.took)


@pytest.mark.parametrize("others", ["-e page-faults -g", "-e page-faults,minor-faults -k CLOCK_REALTIME"])
def test_beside_perf_record(trace: Any, tmp_path: Path, program: Path, others: str) -> None:
    """perf gives the events of a kind one time between them, on the clock of one of them."""
    if shutil.which("perf") is None:
        pytest.skip("needs perf (tests/install-peers)")
    with beside("perf", "record", "-a", "-c", "1", "-o", str(tmp_path / "perf.data"), *others.split()):
        timed = Timed(trace, tmp_path, program, "touch", 2000)
    timed.assert_true(timed.of_own // 10)


def test_a_stack_dump_is_no_part_of_it(trace: Any, tmp_path: Path, program: Path) -> None:
    """The event with the dump comes before that at the entry: copying 16 KiB is no part of the fault.

    It is part of what the access takes. How long the fault itself takes is the machine's (a page that a virtual machine
    touches for the first time since it started may take ten times as long), so only what is besides it is compared.
    """
    besides = []
    for options in ({"stacks": "native", "stack_period": 1}, {}):
        timed = Timed(trace, tmp_path, program, "touch", 500, **options)
        timed.assert_true(2)
        besides.append(np.median(timed.took) - np.median(timed.service))
    assert besides[0] > besides[1] + 800


def test_a_refused_access_is_no_part_of_the_next_one(trace: Any, tmp_path: Path, program: Path) -> None:
    """The first entry has no end, as the fault becomes a signal; its handler sleeps, and the access is made again."""
    timed = Timed(trace, tmp_path, program, "refused", 20)
    assert timed.took.min() > SLOW_NS
    timed.assert_true()
    assert np.median(timed.service) < SLOW_NS


def test_the_same_access_again_and_again(trace: Any, tmp_path: Path, program: Path) -> None:
    out = tmp_path / "own"
    traced = trace(["sh", "-c", f"exec {program} again 500 > {out}"], service_time=True)
    own = np.array([line.split() for line in out.read_text().splitlines()], "u8")
    mine = traced.column("page_fault", "va") == own[0, 0]
    times = traced.column("page_fault", "service_ns")[mine]
    assert len(times) == 500
    assert (times <= own[:, 1]).all()
    assert (times > 0).sum() >= 498


def test_an_end_without_its_own_entry_has_no_time() -> None:
    """An entry is taken once, also by the same access again; and one of another address is not taken."""
    threads = bpf.Map(bpf.LRU_HASH, 8, programs.STAMP_BYTES, 16, b"entered")
    told = bpf.Map(bpf.ARRAY, 4, 8 * 9, 1, b"trials")
    loaded = [
        bpf.Program(programs.entry(threads.fd, fault_counts()), b"entry"),
        bpf.Program(programs.trial(threads.fd, fault_counts(), told.fd, 8, own=1), b"end"),
    ]
    configs = perf.PERF_COUNT_SW_PAGE_FAULTS, perf.PERF_COUNT_SW_PAGE_FAULTS_MIN
    events = [perf.perf_event_open(perf.attr(1, config, sample_period=1), 0, -1) for config in configs]
    memory = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)

    def access(page: int, *on: int) -> int:
        """What the end of an access to a page tells while these events (0 entry, 1 end) are on.

        The events are on for all that this thread does between two calls: where its own memory had a fault too (the
        interpreter's, after a fork or under pressure), the access is made again.
        """
        for _ in range(20):
            ends, time = once(page, *on)
            if ends == (1 in on):
                break
        assert ends == (1 in on)
        return time

    def once(page: int, *on: int) -> tuple[int, int]:
        told.set(bytes(4), bytes(8 * 9))
        memory.madvise(mmap.MADV_DONTNEED)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + page * mmap.PAGESIZE
        for event in on:
            perf.ioctl(events[event], perf.PERF_EVENT_IOC_ENABLE)
        ctypes.memset(address, 1, 1)
        for event in on:
            perf.ioctl(events[event], perf.PERF_EVENT_IOC_DISABLE)
        times = np.frombuffer(told.get(bytes(4)), "<u8")
        return int(times[0]), int(times[1])

    try:
        for event, one in zip(events, loaded, strict=True):
            perf.ioctl(event, perf.PERF_EVENT_IOC_SET_BPF, one.fd)
        assert access(1) == 0
        assert access(1, 0, 1) > 0
        assert access(1, 1) == 0  # its entry was taken
        assert access(1, 0) == 0
        assert access(2, 1) == 0  # another address than that of the last entry
        assert access(2, 0, 1) > 0
        assert access(2, 0) == 0
        assert access(2, 1) == 0  # the same access: the end of the last one and the entry of this one were displaced
    finally:
        for event in events:
            os.close(event)
        for opened in (threads, told, *loaded):
            opened.close()


def test_an_exec_in_a_fault(trace: Any, program: Path) -> None:
    """Another thread executes and takes over the id of the one that waits in a fault, which never ends."""
    traced = trace([program, "executed", "1", shutil.which("true")], service_time=True)
    times = traced.column("page_fault", "service_ns")
    assert traced.context.targets[0].exit_code == 0
    assert traced.processes(3).pid.size == 2
    assert times.max() < 300_000_000
    assert int((times == 0).sum()) == traced.ledger("without_time")


@pytest.mark.parametrize("stacks", ["none", "python", "native"])
def test_as_many_records_as_without_times(trace: Any, touch: Path, stacks: str) -> None:
    counts = {}
    for asked in (False, True):
        traced = trace([touch, 10000], stacks=stacks, service_time=asked)
        traced.assert_balanced()
        counts[asked] = len(traced.faults())
        faults = [batch for batch in traced.batches if batch.schema.name == "page_fault"]
        assert all(("service_ns" in batch) is asked for batch in faults)
    assert abs(counts[True] - counts[False]) <= 20  # the C library's own faults vary


@pytest.mark.parametrize("stacks", ["none", "python"])
def test_rings_of_a_page_lose_times_and_make_none_wrong(trace: Any, tmp_path: Path, program: Path, stacks: str) -> None:
    timed = Timed(trace, tmp_path, program, "touch", 8000, ring_bytes=4096, stacks=stacks)
    assert timed.trace.ledger("lost_kernel") > 1000
    assert timed.of_own > 20
    timed.assert_true(timed.of_own // 2)
    timed.trace.assert_balanced()


def test_one_in_so_many(trace: Any, tmp_path: Path, program: Path) -> None:
    timed = Timed(trace, tmp_path, program, "touch", 3000, period=7)
    assert 300 < timed.of_own < 600
    timed.assert_true(2)


def test_beside_a_program_that_writes_maps_all_the_time(trace: Any, tmp_path: Path, program: Path) -> None:
    """bpf(2) keeps other programs off its CPU while it changes a map: one half of a pair is missing then."""
    with beside(*writes_maps()):
        timed = Timed(trace, tmp_path, program, "touch", 20000)
    timed.assert_true(timed.of_own // 10)
    assert timed.trace.ledger("unaccounted") == 0


BUSY = """
import mmap, sys, threading, time
def work():
    while True:
        m = mmap.mmap(-1, 1 << 20, flags=34)
        m[:] = bytes(1 << 20)
        time.sleep(0.01)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
print(flush=True)
sys.stdin.read()
"""


def test_attached_threads_have_times_once(attach: Any) -> None:
    """Threads that have both inherited events and those opened on them run both programs twice."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", BUSY], **pipes) as process:
        process.stdout.readline()
        traced = attach(process.pid, service_time=True, stacks="none")
        traced.drain(lambda: len(traced.column("page_fault", "va")) > 2000)
        process.stdin.close()
        process.wait()
        traced.stop()
    times = traced.column("page_fault", "service_ns")
    assert len(times) > 2000
    assert (times > 0).mean() > 0.95
    assert int((times == 0).sum()) == traced.ledger("without_time")


def test_nothing_is_left_open(trace: Any, touch: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    trace([touch, 10], service_time=True)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_kernel_without_huge_pages_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN one that refuses advice about huge pages, as those with PREEMPT_RT do, and gives none."""

    class Advised(mmap.mmap):
        def madvise(self, *asked: int) -> None:
            with contextlib.suppress(OSError):
                super().madvise(*asked)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(mmap, "mmap", Advised)
    assert level().name == "measured"
