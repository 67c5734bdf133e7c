"""Snapshots of real processes against what the kernel itself counts: statm, smaps_rollup, VmPTE, known pages."""

import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from kit.blame_scripted import composition
from kit.command_line import until
from kit.held_memory import holder, holding
from kit.stopped_process import agreed, pages_of, rollup, status, stopped

import wstrace
from wstrace import schema
from wstrace.errors import TargetExited, Unavailable, UsageError
from wstrace.interfaces import Context
from wstrace.testing import RecordingExporter
from wstrace_plugins.os.linux import pagemap
from wstrace_plugins.os.linux.backend import LinuxPlatform
from wstrace_plugins.working_set.linux import backend as linux
from wstrace_plugins.working_set.source import WorkingSetSource

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: /proc/PID/pagemap")
PAGE = mmap.PAGESIZE
MIXED = """
    dense, every_second, zeros, shared = anon(8 << 20), anon(4 << 20), anon(1 << 20), anon(2 << 20, mmap.MAP_SHARED)
    touch(dense), touch(every_second, 2 * PAGE), touch(shared, 3 * PAGE)
    sum(zeros[i] for i in range(0, len(zeros), PAGE))
    file = tempfile.TemporaryFile()
    file.write(bytes(2 << 20)), file.flush()
    private = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    sum(private[i] for i in range(0, len(private), PAGE))
    touch(private, 4 * PAGE)
    huge = anon(max(8 << 20, PAGE * PAGE // 4))  # two huge pages
    with contextlib.suppress(OSError):  # a kernel without huge pages
        huge.madvise(mmap.MADV_HUGEPAGE)
    touch(huge)
    reserved = anon(16 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    {more}
    ready()
"""


@pytest.mark.parametrize("more", ["pass", "del reserved"], ids=["sparse", "dense"])
def test_totals_are_the_kernels(more):
    with stopped(MIXED.format(more=more)) as (pid, _):
        agreed(pid)


def test_totals_with_pages_shared_after_fork():
    script = """
        memory = anon(4 << 20)
        touch(memory)
        child = os.fork()
        if child == 0:
            touch(memory[:0]) if False else None
            for i in range(0, 1 << 20, PAGE):
                memory[i] = 2
            time.sleep(60)
        time.sleep(0.3)
        ready(child)
    """
    with stopped(script) as (pid, words):
        try:
            taken = agreed(pid)
            anonymous = next(owner for owner in taken.by("kind") if owner.kind == "anon")
            assert anonymous.shared > 2 << 20, "pages that the child has too"
        finally:
            os.kill(int(words[0]), signal.SIGKILL)


def test_without_pagemap_scan_the_totals_hold_but_for_zero_pages(monkeypatch):
    with stopped(MIXED.format(more="pass")) as (pid, _):
        full, has_scan = wstrace.working_set(pid), pagemap.has_scan()
        monkeypatch.setattr(pagemap, "has_scan", lambda: False)
        monkeypatch.setattr(pagemap.Pagemap, "scan", None)
        fallback = wstrace.working_set(pid)
        zeros = fallback.total_bytes - rollup(pid)["Rss"]
        assert zeros >= 1 << 20, "what the program has read of untouched memory"
        if has_scan:  # before Linux 6.7 both snapshots are taken without it
            assert zeros == full.count((full.runs["flags"] & schema.PAGE_ZERO) != 0)
        assert fallback.private_bytes == full.private_bytes
        assert not (fallback.runs["flags"] & (schema.PAGE_HUGE | schema.PAGE_ZERO)).any()
        assert linux.probe().name == "pagemap"


def test_every_second_page_as_the_kernels_selftest_has_it():
    """tools/testing/selftests/mm/pagemap_ioctl.c writes every second page: more than 512 regions in one scan."""
    with stopped("m = anon(8192 * PAGE)\ntouch(m, 2 * PAGE)\nready(at(m))") as (pid, words):
        found = pages_of(wstrace.working_set(pid), int(words[0]), 8192 * PAGE)
        assert sorted(found) == list(range(0, 8192, 2))


def test_attributes_of_pages_one_by_one():
    script = """
        file = tempfile.TemporaryFile()
        file.write(bytes(4 * PAGE)), file.flush()
        private = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
        private[0], private[PAGE]
        private[PAGE] = 1
        reading = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        reading[0]
        shared = anon(2 * PAGE, mmap.MAP_SHARED)
        shared[0] = 1
        memory = anon(3 * PAGE)
        memory[0] = 1
        memory[PAGE]
        code = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
        code[0] = 1
        locked = anon(2 * PAGE)
        assert ctypes.CDLL(None).mlock(ctypes.c_void_p(at(locked)), ctypes.c_size_t(2 * PAGE)) == 0
        r = ctypes.pythonapi.PyObject_GetBuffer
        import numpy
        ready(at(private), numpy.frombuffer(reading, "u1").ctypes.data, at(shared), at(memory), at(code), at(locked))
    """
    names = {
        name.removeprefix("PAGE_"): bit
        for name, bit in vars(schema).items()
        if name.startswith("PAGE_") and isinstance(bit, int)
    }

    def words(flags):
        return {name for name, bit in names.items() if flags & bit}

    with stopped(script) as (pid, addresses):
        taken = wstrace.working_set(pid)
        private, reading, shared, memory, code, locked = (pages_of(taken, int(a), 4 * PAGE) for a in addresses)
    assert words(private[0]) == {"READ", "WRITE", "COPY_ON_WRITE", "SHARED", "FILE"} or words(private[0]) == {
        "READ", "WRITE", "COPY_ON_WRITE", "EXCLUSIVE", "FILE"}  # fmt: skip  # mapped twice by one process
    assert words(private[1]) == {"READ", "WRITE", "EXCLUSIVE"}
    assert {"READ", "FILE"} <= words(reading[0]) <= {"READ", "FILE", "SHARED", "EXCLUSIVE"}
    assert words(shared[0]) == {"READ", "WRITE", "FILE", "EXCLUSIVE"}
    assert 1 not in shared
    assert words(memory[0]) == {"READ", "WRITE", "EXCLUSIVE"}
    zero = "ZERO" if pagemap.has_scan() else "SHARED"
    assert words(memory[1]) == {"READ", "WRITE", "COPY_ON_WRITE", zero}
    assert 2 not in memory
    assert words(code[0]) == {"READ", "WRITE", "EXECUTE", "EXCLUSIVE"}
    assert words(locked[0]) == words(locked[1]) == {"READ", "WRITE", "EXCLUSIVE", "LOCKED"}


@pytest.mark.usefixtures("watchable")
@pytest.mark.parametrize("privileged", [True, False])
def test_guard_pages_and_write_protection_are_nothing_swapped_out(privileged, monkeypatch):
    """MADV_GUARD_INSTALL (Linux 6.13) and a userfaultfd leave marks where no page is; they look like swap entries."""
    script = """
        import numpy, wstrace
        guarded = anon(256 * PAGE)
        touch(guarded)
        code = ctypes.CDLL(None).madvise(ctypes.c_void_p(at(guarded) + 128 * PAGE), ctypes.c_size_t(64 * PAGE), 102)
        watch = wstrace.WriteWatch(1024 * PAGE)
        memoryview(watch).cast("B")[5 * PAGE] = 1
        ready(at(guarded), numpy.frombuffer(watch, "u1").ctypes.data, code)
    """
    with stopped(script) as (pid, (guarded, watched, code)):
        if not privileged:
            monkeypatch.setattr(pagemap.Pagemap, "entries", hidden(pagemap.Pagemap.entries))
        taken = agreed(pid)
        assert taken.swapped_bytes == status(pid, "VmSwap") == 0
        assert list(pages_of(taken, int(watched), 1024 * PAGE)) == [5]
        found = pages_of(taken, int(guarded), 256 * PAGE)
    if code != "0":
        pytest.skip("guard pages: only on Linux 6.13 and later")
    shown = {page for page, flags in found.items() if flags & schema.PAGE_GUARD}
    assert shown == set(range(128, 192))


def hidden(entries):
    """Pagemap.entries as a reader without CAP_SYS_ADMIN is answered."""
    return lambda *wanted: entries(*wanted) & np.uint64(~pagemap.PFN_MASK & (1 << 64) - 1)


def test_share_counts():
    if os.geteuid() != 0:
        pytest.skip("needs root: /proc/kpagecount")
    script = """
        memory = anon(64 * PAGE, mmap.MAP_SHARED)
        touch(memory)
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                sum(memory[i] for i in range(0, 32 * PAGE, PAGE))
                time.sleep(60)
            children.append(child)
        time.sleep(0.5)
        ready(at(memory), *children)
    """
    with stopped(script) as (pid, words):
        try:
            descriptors = len(list(Path("/proc/self/fd").iterdir()))
            taken = agreed(pid, shares=True)
            assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
        finally:
            for child in words[1:]:
                os.kill(int(child), signal.SIGKILL)
        inside = (taken.runs["start"] >= int(words[0])) & (taken.runs["start"] < int(words[0]) + 64 * PAGE)
        counts = np.repeat(taken.runs["shares"][inside], taken.runs["pages"][inside]).tolist()
        assert (counts[:32], counts[48:]) == ([3] * 32, [1] * 16), "a fault may map 16 pages around it"


def test_a_kernel_thread_has_no_memory():
    try:
        name = Path("/proc/2/comm").read_text()
    except OSError:
        pytest.skip("no kernel threads are visible here")
    if "kthreadd" not in name:
        pytest.skip("process 2 is no kernel thread here")
    with pytest.raises(Unavailable, match="kernel thread"):
        wstrace.working_set(2)


def test_a_zombie_is_gone():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    with pytest.raises(TargetExited, match="zombie"):
        wstrace.working_set(child)
    os.waitpid(child, 0)
    with pytest.raises(TargetExited):
        wstrace.working_set(child)


def test_another_users_process_is_refused_with_a_remedy():
    if os.geteuid() != 0:
        pytest.skip("needs root, to be someone else")
    code = "import os, sys, wstrace; import wstrace_plugins.working_set.linux.backend\n" \
           "import wstrace_plugins.working_set.working_set as w\n" \
           "from wstrace_plugins.os import backend; backend('wstrace_plugins.working_set'); import resource, numpy\n" \
           f"w.working_set(); os.setgid(65534); os.setuid(65534)\ntry: w.working_set({os.getpid()})\n" \
           "except wstrace.Unavailable as e: print(e); sys.exit(7)"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert "as root" in done.stdout


@pytest.mark.parametrize("ending", ["exit", "exec"])
def test_a_process_that_goes_away_in_mid_scan(ending):
    """Ends are many and quick; every answer is a snapshot or a clear word."""
    then = "os._exit(0)" if ending == "exit" else "os.execv('/bin/true', ['true'])"
    script = f"import mmap,os,time\nm=mmap.mmap(-1,32<<20,flags=34)\nfor i in range(0,32<<20,mmap.PAGESIZE): m[i]=1\n" \
             f"print(flush=True)\ntime.sleep({{pause}})\n{then}"  # fmt: skip
    outcomes = set()
    for pause in (0.01, 0.01, 0.01, 0.01, 0.1, 1.0, 10.0):  # a slow machine reads nothing in 10 ms
        if pause > 0.01 and len(outcomes) == 2:
            break
        target = subprocess.Popen([sys.executable, "-c", script.format(pause=pause)], stdout=subprocess.PIPE)
        target.stdout.readline()
        until = time.monotonic() + 2
        while time.monotonic() < until:
            try:
                taken = wstrace.working_set(target.pid)
                assert taken.total_bytes > 0
                outcomes.add("read")
            except TargetExited:
                outcomes.add("gone")
                if ending == "exit" or target.poll() is not None:
                    break
        target.wait()
        target.stdout.close()
    assert outcomes == {"read", "gone"}


def test_a_large_snapshot_comes_in_parts_after_its_mappings():
    with holding(600 << 20, 2 * PAGE) as target:
        source = WorkingSetSource(interval=0)
        source.start(Context(targets=(LinuxPlatform().attach(target.pid),), children=False))
        batches = list(source.drain(0.1))
        assert source.finished
        assert list(source.stop()) == []
    space, *parts = batches
    assert space.schema is schema.ADDRESS_SPACE
    assert space["event"].tolist() == [schema.SPACE_REPLACE] + [schema.SPACE_MAP] * (len(space) - 1)
    assert [p.snapshot.part for p in parts] == [0, 1]
    assert [p.snapshot.last for p in parts] == [False, True]
    assert {(p.snapshot.pid, p.snapshot.number, p.snapshot.time_ns) for p in parts} == {
        (target.pid, 1, space.window[0])
    }
    assert [p.snapshot.pages for p in parts] == [int(p["pages"].sum()) for p in parts]
    start = np.concatenate([p["start"] for p in parts])
    assert (np.diff(start.astype(np.int64)) > 0).all()
    assert sum(p.snapshot.pages for p in parts) > 600 * 256 // 2


def test_every_interval_and_the_tree_with_names_from_the_enricher():
    keep = RecordingExporter()
    code = f"import subprocess; subprocess.run({holder(4 << 20)!r})"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        parent.stdout.readline()
        with wstrace.Session(parent.pid, sources=["working_set:interval=0.05,max_cpu=1"], exporters=[keep]):
            time.sleep(0.6)
        parent.stdin.close()
    resident = keep.of("resident")
    assert len({b.snapshot.pid for b in resident}) == 2
    assert len({b.snapshot.number for b in resident}) >= 4
    for batch in resident:
        assert (batch["file"] != 0).all()
        assert (batch["mapping"] != 0).all()
    names = {resident[0].strings[c] for c in resident[0]["file"].tolist()}
    assert "[heap]" in names
    assert any(name.endswith(("/libc.so.6", "/python3.11")) or "python" in name for name in names)


def test_the_budget_stretches_the_interval():
    with holding(64 << 20) as target:
        source = WorkingSetSource(interval=0.001, max_cpu=0.01)
        source.start(Context(targets=(LinuxPlatform().attach(target.pid),), children=False))
        until, batches = time.monotonic() + 0.5, []
        while time.monotonic() < until:
            batches += source.drain(0.05)
    taken = len({b.snapshot.number for b in batches if b.schema.name == "resident"})
    # the first is free, the next ones not before cost / max_cpu
    assert taken <= 2 + 0.5 * 0.01 / (source._cpu_seconds / taken)


@pytest.mark.parametrize("options", [{"interval": -1.0}, {"max_cpu": 0.0}, {"max_cpu": 2.0}])
def test_options_out_of_range(options):
    with pytest.raises(UsageError):
        WorkingSetSource(**options)


def test_unless_reported_otherwise_an_attached_process_is_read_at_both_ends():
    with holding(1 << 20) as target:
        source = WorkingSetSource()
        source.start(Context(targets=(LinuxPlatform().attach(target.pid),), children=False))
        first = list(source.drain(0.05))
        assert list(source.drain(0.05)) == []
        assert not source.finished
        last = list(source.stop())
    assert [b.schema.name for b in first] == [b.schema.name for b in last] == ["address_space", "resident"]


def test_a_mark_has_a_snapshot_soon_after_it():
    """GIVEN snapshots that are far apart WHEN a mark is set THEN there is one for it before the next is due."""
    with holding(4 << 20) as target, wstrace.Session(target.pid, sources=["working_set:interval=1000"]) as session:
        for text in ("warm", "hot"):
            session.mark(f"before {text}")
            session.mark(text)
            until(lambda text=text: _taken(session, text))
            assert composition(session.trace, at=text).inputs.time_ns == _taken(session, text)[0]
    assert len(_taken(session)) <= 6, "at the start and the end, one or two for marks that follow each other at once"


def _taken(session: wstrace.Session, mark: str = "") -> list[int]:
    """The times of all snapshots, or of those after a mark."""
    found = sorted({batch.snapshot.time_ns for batch in session.trace.batches("resident")})
    marks = {b.strings[b["text"][0]]: int(b["time_ns"][0]) for b in session.trace.batches("mark")}
    return [at for at in found if at >= marks.get(mark, 1 << 63)] if mark else found
