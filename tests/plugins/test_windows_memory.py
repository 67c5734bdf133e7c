"""Paths of mapped files and the rows of allocations, on a stand-in machine."""

import numpy as np
import pytest
from kit.fake_windows import KERNEL_PC, FakeAllocation, FakeWindows
from kit.fake_windows_system import at

from wstrace.batch import Dictionary
from wstrace.interfaces import Place
from wstrace.schema import MAP_EXECUTE, MAP_READ, MAP_WRITE, OFFSET_UNKNOWN, SPACE_MAP, SPACE_UNMAP
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import paths
from wstrace_plugins.os.windows import process as processes
from wstrace_plugins.os.windows.layouts import MEMORY_BASIC_INFORMATION
from wstrace_plugins.os.windows.memory import AddressSpace, Memory
from wstrace_plugins.os.windows.paths import drive_path, openable, utf16

VOLUME = "\\Device\\HarddiskVolume9"


@pytest.mark.parametrize(("kernels", "shown"), [
    ("\\Device\\HarddiskVolume3\\a\\b.dll", "C:\\a\\b.dll"),
    ("\\Device\\Mup\\srv\\share\\a.dll", "\\\\srv\\share\\a.dll"),
    ("\\Device\\Mup\\;LanmanRedirector\\;Z:000000000001abcd\\srv\\share\\a.dll", "\\\\srv\\share\\a.dll"),
    ("\\Device\\LanmanRedirector\\;Z:0000\\srv\\share\\a.dll", "\\\\srv\\share\\a.dll"),
    ("\\Device\\P9Rdr\\wsl.localhost\\Debian\\a", "\\\\wsl.localhost\\Debian\\a"),
    ("\\Device\\VBoxMiniRdr\\;E:\\VBoxSvr\\share\\a.dll", "\\\\VBoxSvr\\share\\a.dll"),
    ("\\??\\C:\\windows\\a.dll", "C:\\windows\\a.dll"),
    ("\\??\\UNC\\srv\\share\\a.dll", "\\\\srv\\share\\a.dll"),
    (VOLUME + "\\x.dll", VOLUME + "\\x.dll"),
    ("\\Device\\HarddiskVolume3", "C:\\"),
])  # fmt: skip
def test_a_path_of_the_kernels_as_people_read_it(kernels, shown):
    assert drive_path(FakeWindows(), kernels) == shown


def test_a_name_ends_at_a_nul_and_holds_no_half_of_a_character():
    units = np.frombuffer("C:\\l_intl.nls\0x".encode("utf-16-le") + b"\x00\xd8", "<u2")
    assert utf16(units) == "C:\\l_intl.nls"
    assert utf16(units[:-3]) == "C:\\l_intl.nls"
    assert utf16(units[-1:]) == "\ufffd"
    windows = FakeWindows()
    windows.process(7).allocations.append(FakeAllocation(0x1000, 0x1000, winapi.MEM_MAPPED, file="\\??\\C:\\a.nls\0"))
    with processes.opened(windows, 7, winapi.QUERY_RIGHTS) as handle:
        assert Memory(windows, handle).file(0x1000) == "C:\\a.nls"


def test_a_letter_that_is_given_later_is_found_and_not_requested_at_each_name(monkeypatch):
    windows = FakeWindows()
    assert drive_path(windows, VOLUME + "\\x.dll") == VOLUME + "\\x.dll"
    wanted = len(windows.wanted)
    assert drive_path(windows, VOLUME + "\\y.dll") == VOLUME + "\\y.dll"
    assert len(windows.wanted) == wanted
    windows.drives["V:"] = VOLUME
    monkeypatch.setattr(paths, "_BELIEVED_SECONDS", 0)
    assert drive_path(windows, VOLUME + "\\x.dll") == "V:\\x.dll"


def test_a_letter_that_another_volume_was_given_names_that_one(monkeypatch):
    windows, other = FakeWindows(), "\\Device\\HarddiskVolume11"
    windows.drives["V:"] = VOLUME
    assert drive_path(windows, VOLUME + "\\x.dll") == "V:\\x.dll"
    windows.drives["V:"] = other  # the stick was drawn, another one put in
    monkeypatch.setattr(paths, "_BELIEVED_SECONDS", 0)
    assert drive_path(windows, VOLUME + "\\x.dll") == VOLUME + "\\x.dll"
    assert drive_path(windows, other + "\\x.dll") == "V:\\x.dll"


@pytest.mark.parametrize("path", [
    r"\Device\NamedPipe\x", r"\Device\Mailslot\x", r"\Device\ConDrv\x", r"\Device\Serial0", r"\Device\Harddisk0\DR0",
    r"\Device\WinDfs\server\share\x.dll", r"\Device\HarddiskVolume9", r"\Device\HarddiskVolume9x\..\x.dll",
    r"\??\pipe\x", r"\??\UNC\server\share\x.dll", r"\Windows\x.dll", "x.dll", "C:x.dll", "CON", "", "/lib/libc.so.6",
    "[anon]", r"\\server\share\x.dll", "//server/share/x.dll", r"\/server\x.dll", r"\Device\Mup\server\share\x.dll",
])  # fmt: skip
def test_only_files_of_volumes_are_opened(path):
    """A trace may name a pipe, whose server could act as the user who opens it, or a device, or another machine."""
    assert openable(path) == ""


@pytest.mark.parametrize("path", [
    r"C:\con", r"C:\dir\NUL.dll", r"C:\com1", r"C:\aux .x\a.dll", r"C:\dir\x.dll.", r"C:\dir \x.dll", r"C:\a/b.dll",
    r"C:\a\..\b.dll", "C:\\lpt\u00b9.dll", r"C:\conout$", r"C:\prn:stream", "C:\\" + "d\\" * 150 + "x.dll",
])  # fmt: skip
def test_a_name_that_win32_would_refuse_or_take_for_another_is_opened_as_it_is(path):
    assert openable(path) == "\\\\?\\" + path


@pytest.mark.parametrize("path", [r"C:\console\nullify.dll", r"C:\a b\.x\com10.dll", r"C:\x\c.on", r"C:\com\x.con"])
def test_an_ordinary_name_is_opened_unchanged_and_one_of_a_volume_by_that(path):
    assert openable(path) == path
    assert openable(VOLUME + path[2:]) == "\\\\?\\GLOBALROOT" + VOLUME + path[2:]


def allocation(**options):
    windows = FakeWindows()
    windows.process(7).allocations.append(FakeAllocation(0x10000, 0x10000, **options))
    handle = windows.OpenProcess(winapi.QUERY_RIGHTS, 0, 7)
    return Memory(windows, handle).allocation(0x10000)


@pytest.mark.parametrize(("reserved", "protect", "rights"), [
    # V8, .NET and Java reserve without any rights, and commit with all
    (winapi.PAGE_NOACCESS, winapi.PAGE_EXECUTE_READWRITE, MAP_READ | MAP_WRITE | MAP_EXECUTE),
    (winapi.PAGE_READWRITE, winapi.PAGE_READONLY, MAP_READ),  # hardened later
])  # fmt: skip
def test_memory_has_the_present_rights_of_its_committed_pages(reserved, protect, rights):
    assert allocation(reserved=reserved, protect=protect).flags & 7 == rights


def test_only_an_image_has_a_known_offset():
    """A DLL that is mapped flat (LOAD_LIBRARY_AS_DATAFILE, mmap) has no sections at its offsets."""
    dll = "\\Device\\HarddiskVolume3\\a.dll"
    assert allocation(type=winapi.MEM_IMAGE, file=dll).offset == 0
    assert allocation(type=winapi.MEM_MAPPED, file=dll).offset == OFFSET_UNKNOWN
    assert allocation(type=winapi.MEM_MAPPED).offset == 0
    assert str(Place("a.dll", address=OFFSET_UNKNOWN + 0x1234)) == "a.dll"


def test_addresses_of_the_kernel_are_not_queried():
    """A record of kernel code has one, at each drain."""

    class Counting(FakeWindows):
        def __init__(self):
            super().__init__()
            self.queried = []

        def VirtualQueryEx(self, handle, address, buffer, size):
            self.queried.append(address)
            return super().VirtualQueryEx(handle, address, buffer, size)

    windows = Counting()
    windows.process(7).allocations.append(FakeAllocation(0x10000, 0x10000))
    with processes.opened(windows, 7, winapi.QUERY_RIGHTS) as handle:
        space = AddressSpace(Memory(windows, handle), 7, Dictionary())
        assert len(space.discover(np.array([0x10000, KERNEL_PC], "<u8"), 1)["start"]) == 1
        assert 0 < max(windows.queried) < 1 << 63
        for _ in range(2):  # nor is a place without memory, at each
            space.discover(np.array([0x90000], "<u8"), 2)
        assert windows.queried.count(0x90000) == 1


def test_what_lay_where_a_new_allocation_lies_is_gone():
    windows = FakeWindows()
    process = windows.process(7)
    process.allocations = [FakeAllocation(0x20000, 0x10000)]
    with processes.opened(windows, 7, winapi.QUERY_RIGHTS) as handle:
        space = AddressSpace(Memory(windows, handle), 7, Dictionary())
        space.listing(1)
        process.allocations = [FakeAllocation(0x10000, 0x30000)]
        rows = space.discover(np.array([0x10000], "<u8"), 2)
    assert list(zip(rows["event"], rows["start"], strict=True)) == [(SPACE_UNMAP, 0x20000), (SPACE_MAP, 0x10000)]


def test_an_allocation_of_countless_regions_is_read_in_part():
    class Torn(FakeWindows):
        def VirtualQueryEx(self, handle, address, buffer, size):
            row = (address, 0x10000, 4, 4096, winapi.MEM_COMMIT, 4, winapi.MEM_PRIVATE)
            at(buffer, MEMORY_BASIC_INFORMATION, 1)[0] = row
            return size if address < 1 << 26 else 0

    assert Memory(Torn(), 4).allocation(0x10000).end == 0x10000 + 4096 * 4096
