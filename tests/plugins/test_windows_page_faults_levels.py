"""Kernel addresses that Windows 11 24H2 leaves out, and the drain in time, on a stand-in machine."""

import contextlib
import sys
import threading
import time

import pytest
from kit.fake_windows import KERNEL_PC, FakeWindows
from kit.windows_machine import EXE, HEAP, faults, machine, traced

from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace.schema import FAULT_OBSERVER
from wstrace.testing import ScriptedTarget
from wstrace_plugins.page_faults.windows.backend import PageFaults
from wstrace_plugins.page_faults.windows.drainer import Drainer

NEW = 26100


def new_machine(**options):
    windows = machine(**options)
    windows.build = NEW
    windows.process(1)
    return windows


def probe(windows):
    class Here(PageFaults):
        api = windows

    return Here.probe()


def test_from_24h2_on_the_level_is_user_without_the_privilege_that_the_remedy_names():
    windows = machine()
    windows.process(1)
    assert probe(windows).name == "full"
    windows.build = NEW
    level = probe(windows)
    assert level.name == "user"
    assert "SeDebugPrivilege" in level.why
    assert "--debug-privilege" in level.remedy
    windows.privileges = {"SeDebugPrivilege"}
    assert probe(windows).name == "full"
    assert not windows.handles.keys() - {-1}


def test_the_faults_that_are_left_out_are_a_number_with_this_reason():
    windows = new_machine()
    source, context = traced(windows)
    for n in range(3000):
        windows.processes[7].fault(KERNEL_PC + n if n % 10 else EXE, HEAP + n * 8)
        if n % 500 == 499:
            list(source.drain(0.0))
    list(source.stop())
    assert context.info.level.name == "user"
    assert "--debug-privilege" in context.info.level.remedy
    assert context.ledger.get("counted") == 3000
    assert context.ledger.get("unaccounted") == 2700
    said = " ".join(r for r in context.info.notes if "unaccounted" in r)
    assert said.index("SeDebugPrivilege") < said.index("another tracer")


def test_drains_are_as_often_as_faults_need_that_are_left_out():
    windows = new_machine()
    drainer = Drainer(windows, 0.01, 0, [], hidden=True)
    drainer.watch(7, 0)
    for _ in range(10):
        drainer.drain()
    assert drainer.pause == 0.01
    for _ in range(1000):
        windows.processes[7].fault(KERNEL_PC, HEAP)
    drainer.drain()
    assert drainer.pause < 0.002


def test_require_full_is_refused_with_what_lifts_it():
    windows = new_machine()
    with pytest.raises(Unavailable, match="24H2") as refused:
        traced(windows, context=Context(targets=(ScriptedTarget(),), require="full"))
    assert "--debug-privilege" in refused.value.remedy


def test_the_buffers_are_emptied_while_a_name_is_waited_for():
    """A server that answers late holds names and rows back, not the drain."""
    windows = machine()
    windows.process(8)
    waiting, go_on = threading.Event(), threading.Event()

    class Slow(FakeWindows):
        def GetMappedFileNameW(self, handle, address, buffer, chars):
            waiting.set()
            assert go_on.wait(30)
            return FakeWindows.GetMappedFileNameW(self, handle, address, buffer, chars)

        def QueryFullProcessImageNameW(self, handle, flags, buffer, size):
            assert threading.current_thread() is not threading.main_thread(), "queried before all are watched"
            return FakeWindows.QueryFullProcessImageNameW(self, handle, flags, buffer, size)

    windows.__class__ = Slow
    source = PageFaults(poll_ms=1)
    source.api = windows
    context = Context(targets=(ScriptedTarget(7), ScriptedTarget(8)))
    source.start(context)
    found = []
    publisher = threading.Thread(target=lambda: found.extend(source.drain(0.0)))
    publisher.start()
    assert waiting.wait(30)
    for _ in range(4):  # four buffers' worth while that name is not there
        for n in range(1000):
            windows.processes[8].fault(EXE, HEAP + n)
        until = time.monotonic() + 30
        while windows.processes[8].records and time.monotonic() < until:
            time.sleep(0.001)
    go_on.set()
    publisher.join(30)
    found += list(source.drain(0.0)) + list(source.stop())
    assert context.ledger.get("lost_kernel") == 0
    assert len(faults(found)["va"]) == 4000


def test_the_drains_own_thread_is_an_observer():
    windows = machine()
    sys.setswitchinterval(0.005)  # Python's default
    source = PageFaults()
    source.api = windows
    source.start(Context(targets=(ScriptedTarget(),)))
    windows.processes[7].fault(EXE, HEAP, source._drainer._thread.native_id)
    windows.processes[7].fault(EXE, HEAP, 3)
    assert windows.periods == [1]  # a finer timer
    assert sys.getswitchinterval() == pytest.approx(0.001)
    found = list(source.drain(0.0)) + list(source.stop())
    assert (windows.periods, windows.priorities) == ([], [2])  # THREAD_PRIORITY_HIGHEST
    assert sys.getswitchinterval() == pytest.approx(0.005)
    assert (faults(found)["flags"] & FAULT_OBSERVER).astype(bool).tolist() == [True, False]


def test_what_is_held_for_a_publisher_that_does_not_come_is_bounded(monkeypatch):
    monkeypatch.setattr("wstrace_plugins.page_faults.windows.drainer._MAX_RECORDS", 2000)
    windows = machine()
    source, context = traced(windows)
    list(source.drain(0.0))
    source._drainer._exits_seconds = 1e9
    for _ in range(8):
        for n in range(1000):
            windows.processes[7].fault(EXE, HEAP + n)
        source._drainer.drain()
    assert source._drainer._records <= 3000
    found = list(source.drain(0.0)) + list(source.stop())
    kept = len(faults(found)["va"])
    assert kept + context.ledger.get("lost_kernel") == context.ledger.get("counted") == 8000


def test_an_error_of_the_drains_thread_is_raised_where_the_session_sees_it():
    windows = machine()
    source = PageFaults(poll_ms=1)
    source.api = windows
    source.start(Context(targets=(ScriptedTarget(),)))

    def broken(handle, buffer, size):
        raise MemoryError("no room")

    windows.GetWsChangesEx = broken
    source._drainer._thread.join(30)
    with pytest.raises(MemoryError):
        list(source.drain(0.01))
    del windows.GetWsChangesEx
    with contextlib.suppress(MemoryError):  # the thread's own, if a drain of ours was the first to raise
        list(source.stop())
    assert not windows.handles


def test_stacks_that_are_wanted_are_refused_with_the_reason():
    windows = machine()
    with pytest.raises(Unavailable, match="stacks=native: the working-set watch gives the address of the instruction"):
        traced(windows, stacks="native")
    assert not windows.handles
