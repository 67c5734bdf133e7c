"""Which processes the watch of Windows takes, from when and until when, on a stand-in machine."""

import pytest
from kit.fake_windows import FakeWindows
from kit.windows_machine import EXE, HEAP, faults, machine, traced

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes


def test_on_attach_the_first_records_belong_to_the_time_before():
    windows = machine()
    process = windows.processes[7]
    process.watched = True  # another tracer watched it
    for n in range(40):
        process.fault(EXE, HEAP + n)
    source, context = traced(windows, launched=False)
    process.fault(EXE, HEAP + 4096)
    assert faults(source.drain(0.0))["va"].tolist() == [HEAP + 4096]
    list(source.stop())
    assert context.ledger.get("before_start") == 40
    assert context.ledger.get("counted") == 1
    assert "stays on until it exits" in " ".join(context.info.notes)


def test_on_launch_the_first_records_are_kept():
    windows = machine()

    class Early(FakeWindows):
        def InitializeProcessForWsWatch(self, handle):
            done = FakeWindows.InitializeProcessForWsWatch(self, handle)
            self.processes[7].fault(EXE, HEAP + 8)
            return done

    windows.__class__ = Early
    source, context = traced(windows)
    assert faults(source.drain(0.0))["va"].tolist() == [HEAP + 8]
    list(source.stop())
    assert context.ledger.get("before_start") == 0
    assert context.ledger.get("unaccounted") == 0


def test_after_the_exit_the_rest_is_drained_and_the_code_reported():
    windows = machine()
    source, _ = traced(windows)
    process = windows.processes[7]
    process.fault(EXE, HEAP)
    process.exited, process.exit_code = True, 0xC0000005
    batches = list(source.drain(0.0))
    assert faults(batches)["va"].tolist() == [HEAP]
    rows = [b for b in batches if b.schema.name == "process"]
    assert [(b["event"][0], b["code"][0]) for b in rows] == [(1, -1), (4, 0xC0000005 - (1 << 32))]
    assert source.finished
    assert list(source.stop()) == []
    assert not windows.handles


def test_a_stub_is_distinguished_from_a_watch():
    windows = machine(stub=True)
    wine = bool(processes.wine_version())
    with pytest.raises(Unavailable, match="stub here, as under Wine" if wine else "security software") as refused:
        traced(windows)
    assert refused.value.remedy
    assert ("stub" in refused.value.why) is wine  # Windows itself says TRUE where a right was taken away
    assert not windows.handles


def test_files_that_security_software_keeps_from_being_named_are_a_note():
    windows = machine()
    given = windows.OpenProcess
    windows.OpenProcess = lambda rights, *rest: given(rights & ~winapi.PROCESS_VM_READ, *rest)
    source, context = traced(windows)
    list(source.drain(0.0))
    list(source.stop())
    assert f"files of process 7 are not named: GetMappedFileNameW fails; {winapi.STRIPPED}" in context.info.notes


@pytest.mark.parametrize("why", ["denied", "gone"])
def test_a_process_that_cannot_be_opened(why):
    windows = machine()
    if why == "denied":
        windows.processes[7].denied = True
        with pytest.raises(Unavailable, match=r"OpenProcess of pid 7 failed with 5 \(ERROR_ACCESS_DENIED\)") as refused:
            traced(windows)
        assert "administrator" in refused.value.remedy
    else:
        with pytest.raises(TargetExited):
            traced(windows, 8)
    source, _ = traced(machine())  # nothing is left behind: the pid can be traced
    list(source.stop())


def test_no_children_on_request():
    windows = machine()
    source, _ = traced(windows, children=False)
    windows.process(8, parent=7, created=200)
    batches = [*source.drain(0.0), *source.stop()]
    assert {pid for b in batches if b.schema.name == "process" for pid in b["pid"].tolist()} == {7}


def test_what_an_attached_process_does_after_the_last_drain_is_not_unaccounted(monkeypatch):
    """It goes on while the last records are named and published."""
    windows = machine()
    source, context = traced(windows, launched=False)
    list(source.drain(0.0))
    process, query = windows.processes[7], windows.VirtualQueryEx

    def meanwhile(*arguments):
        process.fault(EXE, HEAP + 4096)
        return query(*arguments)

    process.fault(EXE, HEAP)
    process.fault(EXE, 0x700000000)  # a place that is not known yet, so it is looked up
    monkeypatch.setattr(windows, "VirtualQueryEx", meanwhile)
    batches = list(source.stop())
    assert len(faults(batches)["va"]) == 2
    assert process.page_faults > 2
    assert (context.ledger.get("counted"), context.ledger.get("unaccounted")) == (2, 0)
