"""The watch of Windows driven by a stand-in that keeps Microsoft's documented contract, on every system."""

import itertools

import numpy as np
import pytest

from wstrace.errors import TargetExited, Unavailable
from wstrace.interfaces import Context, Target, Usage
from wstrace.schema import FAULT_MAJOR, FAULT_OBSERVER, FAULT_PC_KERNEL, KIND_SHIFT, KINDS
from wstrace.testing import SourceContract
from wstrace_os import windows_api as winapi
from wstrace_os.windows_fake import FakeAllocation, FakeWindows
from wstrace_page_faults.windows import PageFaults
from wstrace_page_faults.windows_watch import KERNEL_RECORDS, Watch

EXE, DLL, HEAP = 0x140000000, 0x7FFB10000000, 0x20000000
DEVICE = "\\Device\\HarddiskVolume3"


class FakeTarget(Target):
    def __init__(self, pid: int, *, launched: bool) -> None:
        self.pid, self.name, self.launched = pid, "app.exe", launched

    def resume(self) -> None: ...

    def wait(self, timeout: float) -> int | None:
        return None

    def usage(self) -> Usage:
        return Usage()

    def signal(self, number: int) -> None: ...

    def close(self) -> None: ...


def machine(**options) -> FakeWindows:
    """A fake machine with process 7: an exe, a DLL, a heap and a stack."""
    windows = FakeWindows(**options)
    high = windows.POINTER == 8
    windows.process(7).allocations += [
        FakeAllocation(EXE if high else 0x400000, 0x5000, winapi.MEM_IMAGE, winapi.PAGE_EXECUTE_WRITECOPY,
                       DEVICE + "\\apps\\app.exe"),
        FakeAllocation(DLL if high else 0x10000000, 0x200000, winapi.MEM_IMAGE, winapi.PAGE_EXECUTE_WRITECOPY,
                       DEVICE + "\\Windows\\System32\\cwdll32.dll"),
        FakeAllocation(HEAP, 0x10000),
        FakeAllocation(HEAP + 0x100000, 0x100000, guard=True),
        FakeAllocation(HEAP + 0x300000, 0x1000, winapi.MEM_MAPPED),
        FakeAllocation(HEAP + 0x400000, 0x1000, winapi.MEM_MAPPED, winapi.PAGE_READONLY,
                       "\\Device\\Mup\\server\\share\\data.bin"),
    ]  # fmt: skip
    return windows


def traced(windows, *pids, launched=True, context=None, **options):
    source = PageFaults(poll_ms=1, **options)
    source.api, source.exits_seconds = windows, 0
    context = context or Context(targets=tuple(FakeTarget(pid, launched=launched) for pid in pids or (7,)))
    source.start(context)
    return source, context


def faults(batches):
    batches = [b for b in batches if b.schema.name == "page_fault"]
    return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]} if batches else {}


class TestContract(SourceContract):
    def make(self):
        self.windows = machine()
        source = PageFaults(poll_ms=1)
        source.api = self.windows
        return source

    def context(self):
        return Context(targets=(FakeTarget(7, launched=True),))

    def batches(self, source, seconds=2.0):
        source.start(self.context())
        for n in range(20):
            self.windows.processes[7].fault(EXE + n, HEAP + n * 4096, 3)
        found = list(source.drain(0.01))
        return found + list(source.stop())


def test_every_fault_arrives_once_in_order():
    windows = machine()
    source, context = traced(windows)
    process, expected, found = windows.processes[7], [], []
    for n in range(5000):
        process.fault(EXE + n, HEAP + n % 16 * 4096 + 8, 3 + n % 2, hard=n % 3 == 0)
        expected.append((EXE + n, HEAP + n % 16 * 4096 + 8, 3 + n % 2, n % 3 == 0))
        if n % 700 == 0:
            found += source.drain(0.0)
    found += source.stop()
    rows = faults(found)
    hard = (rows["flags"] & FAULT_MAJOR).astype(bool)
    assert list(zip(rows["pc"], rows["va"], rows["tid"], hard, strict=True)) == expected
    assert set(rows["pid"]) == {7}
    assert context.ledger.losses() == []
    assert context.ledger.get("counted") == 5000
    assert context.ledger.get("unaccounted") == 0
    assert not windows.handles  # every handle closed


def test_no_time_column_but_windows_that_follow_each_other():
    windows = machine()
    source, _ = traced(windows)
    found = []
    for n in range(3):
        windows.processes[7].fault(EXE, HEAP + n * 4096)
        found += [b for b in source.drain(0.0) if b.schema.name == "page_fault"]
    list(source.stop())
    assert all("time_ns" not in batch for batch in found)
    ends = [w for batch in found for w in batch.window]
    assert ends == sorted(ends)
    assert [a.window[1] == b.window[0] for a, b in itertools.pairwise(found)] == [True, True]


def test_an_overflow_is_counted_exactly():
    windows = machine()
    source, context = traced(windows)
    for n in range(KERNEL_RECORDS + 300):
        windows.processes[7].fault(EXE, HEAP + n)
    batches = list(source.drain(0.0))
    assert sum(b.lost for b in batches) == 300
    assert len(faults(batches)["va"]) == KERNEL_RECORDS
    list(source.stop())
    assert context.ledger.get("lost_kernel") == 300
    assert context.ledger.get("counted") == KERNEL_RECORDS + 300
    assert context.ledger.get("unaccounted") == 0


def test_a_buffer_that_is_too_small_grows_and_nothing_is_lost():
    windows = machine()
    windows.processes[7].capacity = 20_000
    for extended in (True, False):
        windows.ex = extended
        source, _ = traced(windows)
        for n in range(10_000):
            windows.processes[7].fault(EXE + n, HEAP)
        assert faults(list(source.drain(0.0)))["pc"].tolist() == [EXE + n for n in range(10_000)]
        list(source.stop())


def test_before_vista_there_are_no_threads():
    windows = machine(ex=False, xp=True)
    source, context = traced(windows)
    for n in range(KERNEL_RECORDS + 300):
        windows.processes[7].fault(EXE, HEAP + n)
    batches = [b for b in source.drain(0.0) if b.schema.name == "page_fault"]
    assert "tid" not in batches[0]
    assert batches[0].lost == 1
    list(source.stop())
    assert context.ledger.get("unaccounted") == 299


def test_watch_told_that_it_reads_xp_says_that_the_count_is_not_exact():
    windows = machine(ex=False, xp=True)
    watch = Watch(windows, 7, xp=True)
    for n in range(KERNEL_RECORDS + 300):
        windows.processes[7].fault(EXE, HEAP + n)
    watch.drain()
    assert not watch.lost_is_exact
    watch.close()


def test_nothing_recorded_and_a_concurrent_query_are_no_errors():
    windows = machine()
    source, context = traced(windows)
    assert faults(source.drain(0.0)) == {}
    windows.processes[7].fault(EXE, HEAP)
    windows.processes[7].busy = True  # another query is under way
    assert faults(source.drain(0.0)) == {}
    windows.processes[7].fault(EXE, HEAP)  # not recorded while the kernel answers that query
    windows.processes[7].busy = False
    batches = list(source.drain(0.0))
    assert len(faults(batches)["va"]) == 1
    list(source.stop())
    assert context.ledger.get("lost_kernel") == 1


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
    reasons = " ".join(context.facts["not_visible"])
    assert "watched before" in reasons
    assert "stays on until it exits" in reasons


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


def test_after_the_exit_the_rest_is_drained_and_the_code_told():
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


def test_a_stub_is_told_from_a_watch():
    windows = machine(stub=True)
    with pytest.raises(Unavailable, match="stub") as refused:
        traced(windows)
    assert refused.value.remedy
    assert not windows.handles


def test_a_second_session_on_a_process_is_refused_and_the_first_goes_on():
    windows = machine()
    source, _ = traced(windows)
    with pytest.raises(Unavailable, match="already traced"):
        traced(windows)
    windows.processes[7].fault(EXE, HEAP)
    assert len(faults(source.drain(0.0))["va"]) == 1
    list(source.stop())
    again, _ = traced(windows)
    list(again.stop())


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


def test_an_error_of_the_drain_names_call_code_and_meaning():
    windows = machine()
    source, _ = traced(windows)
    windows.processes[7].watched = False
    with pytest.raises(Unavailable, match=r"GetWsChangesEx of pid 7 failed with 31 \(ERROR_GEN_FAILURE"):
        list(source.drain(0.0))
    windows.processes[7].watched = True
    list(source.stop())


def test_a_32_bit_tracer_refuses_a_64_bit_process():
    windows = machine(pointer=4)
    windows.process(1, wow64=True)  # ourselves, on a 64-bit system
    with pytest.raises(Unavailable, match="64-bit process and this Python is 32-bit"):
        traced(windows)
    windows.processes[7].wow64 = True
    source, _ = traced(windows)
    windows.processes[7].fault(0x80400000, HEAP)
    rows = faults(source.drain(0.0))
    assert rows["flags"][0] & FAULT_PC_KERNEL
    assert rows["pc"].dtype == np.dtype("<u8")
    list(source.stop())


def test_kernel_instructions_are_hidden_on_request_and_told():
    windows = machine()
    source, context = traced(windows, kernel=False)
    windows.processes[7].fault(0xFFFFF80000000000, HEAP)
    windows.processes[7].fault(EXE, HEAP)
    assert faults(source.drain(0.0))["pc"].tolist() == [EXE]
    list(source.stop())
    assert "1 faults of instructions in the kernel" in " ".join(context.facts["not_visible"])
    assert context.ledger.get("unaccounted") == 0


def test_records_of_our_own_threads_are_marked():
    windows = machine()
    context = Context(targets=(FakeTarget(7, launched=True),), own_threads=lambda: frozenset({99}))
    source, _ = traced(windows, context=context)
    windows.processes[7].fault(EXE, HEAP, 99)
    windows.processes[7].fault(EXE, HEAP, 3)
    assert (faults(source.drain(0.0))["flags"] & FAULT_OBSERVER).astype(bool).tolist() == [True, False]
    list(source.stop())


def test_another_reader_of_the_same_buffer_shows_as_unaccounted():
    windows = machine()
    source, context = traced(windows)
    for n in range(8000):
        windows.processes[7].fault(EXE, HEAP)
        if n % 500 == 0:
            windows.processes[7].records.clear()  # someone else's query empties the buffer
        if n % 1000 == 999:
            list(source.drain(0.0))
    list(source.stop())
    assert context.ledger.get("unaccounted") > 3000
    assert "another tracer" in " ".join(context.facts["not_visible"])


def test_a_counter_of_32_bits_wraps():
    windows = machine()
    windows.processes[7].page_faults = 0xFFFFFFF0
    source, context = traced(windows)
    for n in range(100):
        windows.processes[7].fault(EXE, HEAP + n)
    list(source.stop())
    assert context.ledger.get("counted") == 100


def test_polling_follows_the_fill():
    windows = machine()
    source = PageFaults(poll_ms=50)
    source.api = windows
    source.start(Context(targets=(FakeTarget(7, launched=True),)))
    for _ in range(20):
        list(source.drain(0.0))
    idle = source.statistics()["pause_seconds"]
    for _ in range(4):
        for n in range(900):
            windows.processes[7].fault(EXE, HEAP + n)
        list(source.drain(0.0))
    busy = source.statistics()["pause_seconds"]
    list(source.stop())
    assert idle == pytest.approx(0.05)
    assert busy == pytest.approx(0.001)


def test_children_are_followed_and_their_missed_start_is_a_number():
    windows = machine()
    source, context = traced(windows)
    list(source.drain(0.0))
    child = windows.process(8, parent=7, name="child.exe", created=200, page_faults=55)
    windows.process(9, parent=8, name="grandchild.exe", created=300, page_faults=5)
    windows.process(10, parent=7, created=1)  # older than process 7: its parent was another one of that number
    windows.process(11, parent=7, created=200, denied=True)
    source._family_looked = 0.0
    batches = list(source.drain(0.0))
    started = [b for b in batches if b.schema.name == "process"]
    assert [(b["pid"][0], b["ppid"][0], b["event"][0]) for b in started] == [(8, 7, 2), (9, 8, 2)]
    assert context.strings[int(started[0]["name"][0])] == "child.exe"
    child.fault(EXE, HEAP)
    assert faults(source.drain(0.0))["pid"].tolist() == [8]
    child.exited = True
    list(source.drain(0.0))
    assert not source.finished
    list(source.stop())
    assert context.ledger.get("before_watch") == 60
    assert "child 11 is not traced" in " ".join(context.facts["not_visible"])
    assert not windows.handles


def test_no_children_on_request():
    windows = machine()
    source, _ = traced(windows, children=False)
    windows.process(8, parent=7, created=200)
    list(source.drain(0.0))
    assert source.statistics()["processes"] == 1
    list(source.stop())


# -- what lies where -------------------------------------------------------------------------------------------------


def spaces(batches, context):
    rows = []
    for batch in batches:
        if batch.schema.name == "address_space":
            for i in range(len(batch)):
                kind = KINDS[int(batch["flags"][i]) >> KIND_SHIFT]
                rows.append(
                    (int(batch["event"][i]), int(batch["start"][i]), context.strings[int(batch["file"][i])], kind)
                )
    return rows


def test_the_first_listing_names_everything_with_drive_letters():
    windows = machine()
    source, context = traced(windows)
    assert spaces(source.drain(0.0), context) == [
        (3, HEAP, "[anon]", "anon"),
        (1, HEAP + 0x100000, "[stack]", "stack"),
        (1, HEAP + 0x300000, "[shared memory]", "shared memory"),
        (1, HEAP + 0x400000, "\\\\server\\share\\data.bin", "file"),
        (1, EXE, "C:\\apps\\app.exe", "file"),
        (1, DLL, "C:\\Windows\\System32\\cwdll32.dll", "file"),
    ]
    list(source.stop())


def test_a_module_loaded_later_is_named_before_its_first_faults():
    windows = machine()
    source, context = traced(windows)
    list(source.drain(0.0))
    late = DLL + 0x10000000
    windows.processes[7].allocations.append(
        FakeAllocation(late, 0x3000, winapi.MEM_IMAGE, winapi.PAGE_EXECUTE_WRITECOPY, "\\Device\\Strange\\late.dll")
    )
    windows.processes[7].fault(late + 0x1000, HEAP)
    batches = list(source.drain(0.0))
    assert [b.schema.name for b in batches] == ["address_space", "page_fault"]
    assert spaces(batches, context) == [(1, late, "\\Device\\Strange\\late.dll", "file")]  # no drive letter: as it is
    windows.processes[7].fault(late + 0x1000, HEAP)
    assert spaces(source.drain(0.0), context) == []  # known by now
    list(source.stop())


def test_a_module_that_was_replaced_by_another_is_seen():
    windows = machine()
    source, context = traced(windows)
    list(source.drain(0.0))
    dll = windows.processes[7].allocations[1]
    dll.file, dll.size = "\\Device\\HarddiskVolume3\\other.dll", 0x8000
    windows.processes[7].fault(DLL + 0x1000, HEAP)
    rows = spaces(source.drain(0.0), context)
    assert [(event, name) for event, _, name, _ in rows] == [
        (2, "C:\\Windows\\System32\\cwdll32.dll"), (1, "C:\\other.dll"),
    ]  # fmt: skip
    list(source.stop())


def test_addresses_of_a_process_that_has_exited_stay_unknown_without_an_error():
    windows = machine()
    source, context = traced(windows)
    list(source.drain(0.0))
    windows.processes[7].fault(0x7FFC00001000, 0x7FFC00002000)
    windows.processes[7].exited = True
    batches = list(source.drain(0.0))
    assert spaces(batches, context) == []
    assert len(faults(batches)["va"]) == 1
    list(source.stop())
