"""The watch of Windows driven by a stand-in that keeps Microsoft's documented contract, on every system."""

import itertools

from kit.windows_machine import DLL, EXE, HEAP, faults, machine, traced

from wstrace.interfaces import Context
from wstrace.schema import FAULT_MAJOR, KIND_SHIFT, KINDS
from wstrace.testing import ScriptedTarget, SourceContract
from wstrace_plugins.page_faults.windows.backend import PageFaults
from wstrace_plugins.page_faults.windows.watch import KERNEL_RECORDS


class TestContract(SourceContract):
    def make(self):
        self.windows = machine()
        source = PageFaults(poll_ms=1)
        source.api = self.windows
        return source

    def context(self):
        return Context(targets=(ScriptedTarget(),))

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
    assert context.ledger.get("counted", "major") == sum(row[3] for row in expected) == 1667
    assert context.ledger.get("counted", "minor") == 5000 - 1667
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
    source, _ = traced(windows)
    for n in range(10_000):
        windows.processes[7].fault(EXE + n, HEAP)
    assert faults(list(source.drain(0.0)))["pc"].tolist() == [EXE + n for n in range(10_000)]
    list(source.stop())


def test_the_size_that_a_query_gives_back_is_not_that_of_the_buffer():
    """GetWsChangesEx gives the bytes that it wrote: a next query of that size would be too small for more records."""
    windows = machine()
    source, _ = traced(windows)
    before = len(windows.calls)
    for n in range(1, 8):
        for _ in range(n):
            windows.processes[7].fault(EXE, HEAP)
        assert len(faults(source.drain(0.0))["pc"]) == n
    assert len(windows.calls) - before == 7, "each drain is one query"


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


def test_kernel_instructions_are_hidden_on_request_and_reported():
    windows = machine()
    source, context = traced(windows, kernel=False)
    windows.processes[7].fault(0xFFFFF80000000000, HEAP)
    windows.processes[7].fault(EXE, HEAP)
    assert faults(source.drain(0.0))["pc"].tolist() == [EXE]
    list(source.stop())
    assert "1 faults of instructions in the kernel" in " ".join(context.info.notes)
    assert context.ledger.get("unaccounted") == 0


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
    assert "another tracer" in " ".join(context.info.notes)


def test_a_counter_of_32_bits_wraps():
    windows = machine()
    windows.processes[7].page_faults = 0xFFFFFFF0
    source, context = traced(windows)
    for n in range(100):
        windows.processes[7].fault(EXE, HEAP + n)
    list(source.stop())
    assert context.ledger.get("counted") == 100


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
