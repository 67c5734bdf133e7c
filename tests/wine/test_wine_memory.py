"""Real VirtualQueryEx, GetMappedFileName, QueryWorkingSetEx, GetWriteWatch and PE files of Wine's own DLLs."""

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import wstrace
from wstrace.batch import Dictionary
from wstrace.errors import TargetExited
from wstrace.interfaces import MappedFile
from wstrace.schema import PAGE_EXCLUSIVE, PAGE_WRITE
from wstrace_plugins.mapped_files.windows.backend import mapped_file
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.backend import platform
from wstrace_plugins.os.windows.memory import AddressSpace, Memory
from wstrace_plugins.os.windows.process import listed
from wstrace_plugins.symbols.resolver import ImageResolver
from wstrace_plugins.working_set.backend import Accounted
from wstrace_plugins.working_set.windows.backend import Space, accounted
from wstrace_plugins.write_watch.windows import backend as write_watch

PAGE = 4096
standin = pytest.mark.skipif(os.environ.get("WSTRACE_STANDIN") != "1", reason="only on the Python with the stand-in")


def address_of(dll, name):
    return ctypes.cast(getattr(ctypes.WinDLL(dll), name), ctypes.c_void_p).value


def test_regions_cover_the_address_space_without_gaps():
    at = 0
    for region in Memory(winapi, winapi.GetCurrentProcess()).regions():
        assert region.base == at
        at += region.size
    assert at > 1 << 46


def test_modules_are_named_with_drive_letters(target):
    assert mapped_file(address_of("ntdll", "NtClose")).lower() == r"c:\windows\system32\ntdll.dll"
    ours = mapped_file(sys.dllhandle)
    assert Path(ours).samefile(Path(sys.executable).with_name("python311.dll"))
    process = target("fault_on_request.py")
    process.stdout.readline()
    assert mapped_file(address_of("ntdll", "NtClose"), process.pid).lower().endswith("ntdll.dll")
    buffer = ctypes.create_string_buffer(100)
    assert mapped_file(ctypes.addressof(buffer)) is None


def test_a_mapped_data_file_is_named(tmp_path):
    path = tmp_path / "data é.bin"
    path.write_bytes(b"x" * 3 * PAGE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        address = np.frombuffer(view, "u1").ctypes.data
        assert path.samefile(mapped_file(address + PAGE))


def test_a_module_loaded_meanwhile_is_discovered_and_one_unloaded_is_ended():
    strings = Dictionary()
    space = AddressSpace(Memory(winapi, winapi.GetCurrentProcess()), os.getpid(), strings)
    listed = space.listing(1)
    assert listed["event"].tolist()[:2] == [3, 1]
    library = ctypes.WinDLL("winmm")
    address = np.array([ctypes.cast(library.timeGetTime, ctypes.c_void_p).value], "<u8")
    rows = space.discover(address, 2)
    assert [os.path.basename(strings[int(code)]).lower() for code in rows["file"]] == ["winmm.dll"]
    assert rows["start"][0] == library._handle
    assert len(space.discover(address, 3)["start"]) == 0


def test_a_process_that_has_ended_gives_nothing():
    process = subprocess.Popen([sys.executable, "-c", "pass"], stdin=subprocess.DEVNULL)
    handle = winapi.open_process(winapi, process.pid, winapi.QUERY_RIGHTS | winapi.SYNCHRONIZE)
    process.wait()
    assert processes.exited(winapi, handle, 5000)
    assert list(Memory(winapi, handle).allocations()) == []
    winapi.CloseHandle(handle)
    with pytest.raises(TargetExited):
        winapi.open_process(winapi, 999_999, winapi.QUERY_RIGHTS)


@pytest.mark.parametrize("dll", ["ntdll", "kernelbase", "user32", "msvcrt", "advapi32", "ole32", "ws2_32", "shell32"])
def test_exports_lie_where_getprocaddress_finds_them(dll):
    library = ctypes.WinDLL(dll)
    path = mapped_file(library._handle)
    sections = ImageResolver()
    everywhere = np.arange(0x1000, 0x400000, 0x200, dtype="<u8")
    found = {place.function for place in sections.resolve(MappedFile(path), everywhere) if place.function}
    checked = 0
    for name in sorted(found):
        try:
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except (AttributeError, ValueError):
            continue
        if mapped_file(address) != path or address < library._handle:  # a forwarder's target
            continue
        place = sections.resolve(MappedFile(path), np.array([address - library._handle], "<u8"))[0]
        assert place.displacement == 0, name
        assert str(place).endswith("!.text(1)"), place
        checked += 1
        if checked == 40:
            break
    assert checked >= 10


@standin
def test_touched_pages_are_in_the_working_set_and_others_are_not():
    memory = write_watch.allocate(64 * PAGE)
    start = ctypes.addressof(memory)
    for page in (0, 1, 2, 10, 63):
        memory[page * PAGE] = 1
    with Space(os.getpid()) as space:
        strings = Dictionary()
        mappings = space.mappings(strings)
        runs = space.runs(mappings)
    inside = (runs["start"] >= start) & (runs["start"] < start + 64 * PAGE)
    ours = list(zip(((runs["start"][inside] - start) // PAGE).tolist(), runs["pages"][inside].tolist(), strict=True))
    assert ours == [(0, 3), (10, 1), (63, 1)]
    assert all(flags & PAGE_WRITE and flags & PAGE_EXCLUSIVE for flags in runs["flags"][inside].tolist())
    assert set(mappings["start"][runs["row"][inside]].tolist()) == {start}


@standin
def test_the_working_set_through_the_api():
    held = np.ones(64 << 20, "u1")
    snapshot, (private, large, *_) = (
        wstrace.working_set(),
        accounted(os.getpid()),
    )  # the latter for the list of processes
    assert snapshot.private_bytes + snapshot.shared_bytes == snapshot.total_bytes
    assert (snapshot.private_bytes >= held.nbytes, large) == (True, None)
    assert abs(private - snapshot.private_bytes) <= 8 << 20  # between the two snapshots
    assert accounted(4_000_000) == Accounted()
    names = {os.path.basename(owner.name).lower() for owner in snapshot.by("module")}
    assert {"ntdll.dll", "python311.dll", "[anon]", "[stack]"} <= names


def test_exactly_the_pages_written():
    watch = wstrace.WriteWatch(4096 * PAGE)
    array = np.frombuffer(watch, "u1")
    assert watch.written().tolist() == []
    pages = np.random.default_rng(7).choice(4096, 400, replace=False)
    array[pages * PAGE + 123] = 9
    assert watch.written(reset=False).tolist() == sorted((pages * PAGE).tolist())
    assert watch.written().tolist() == sorted((pages * PAGE).tolist())
    assert watch.written().tolist() == []
    array[5 * PAGE] = 1
    watch.reset()
    assert watch.written().tolist() == []
    watch.close()


def test_no_write_is_lost_while_it_is_reset():
    watch = wstrace.WriteWatch(256 * PAGE)
    array = np.frombuffer(watch, "u1")
    counts = np.zeros(256, int)
    rounds, done = 400, threading.Event()

    def write():
        for n in range(rounds):
            array[n % 256 * PAGE] = n % 251 + 1
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        counts[watch.written() // PAGE] += 1
    thread.join()
    counts[watch.written() // PAGE] += 1
    assert (counts > 0).all()  # every page was written; none was reset unseen
    watch.close()


def test_memory_is_freed_with_its_last_reference():
    def committed():
        return sum(a.end - a.start for a in Memory(winapi, winapi.GetCurrentProcess()).allocations() if not a.file)

    watch = wstrace.WriteWatch(256 << 20)
    held = committed()
    watch.close()
    del watch
    assert held - committed() >= 256 << 20


def test_the_program_is_what_path_finds_not_what_lies_beside_our_own_python(tmp_path, monkeypatch):
    shutil.copy(os.path.join(os.environ["SYSTEMROOT"], "System32", "hostname.exe"), tmp_path / "python.exe")
    monkeypatch.setenv("PATH", str(tmp_path))
    target = platform().launch(["python"])
    with processes.opened(winapi, target.pid, winapi.QUERY_RIGHTS) as handle:
        assert Path(processes.image(winapi, handle)).samefile(tmp_path / "python.exe")
    target.close()


def test_no_handle_is_left_open():
    count = ctypes.c_uint32()

    def handles():
        ctypes.windll.kernel32.GetProcessHandleCount(ctypes.c_void_p(-1), ctypes.byref(count))
        return count.value

    def everything():
        mapped_file(address_of("ntdll", "NtClose"))
        listed(winapi)
        processes.created(winapi, os.getpid())
        with Space(os.getpid()) as space:
            space.owned()

    everything()
    before = handles()
    for _ in range(50):
        everything()
    assert handles() <= before + 5
