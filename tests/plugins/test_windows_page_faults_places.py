"""What lies where in a process that the watch of Windows follows, on a stand-in machine."""

from fake_windows import FakeAllocation
from windows_machine import DLL, EXE, HEAP, faults, machine, traced

from wstrace.schema import KIND_SHIFT, KINDS
from wstrace_plugins.os.windows import api as winapi


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
