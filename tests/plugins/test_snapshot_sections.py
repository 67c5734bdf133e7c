"""Resident pages by image section, `module!section(n)` as in the 1996 article."""

import json
import os
import struct

import pytest
from kit.fake_windows import FakeAllocation, FakeWindows

from wstrace.batch import Dictionary
from wstrace.cli import main
from wstrace.schema import PAGE_COPY_ON_WRITE, PAGE_EXECUTE, PAGE_READ, PAGE_WRITE
from wstrace_plugins.os import system
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.working_set.commands import snapshot
from wstrace_plugins.working_set.commands.snapshot import protections
from wstrace_plugins.working_set.sections import sectioned
from wstrace_plugins.working_set.windows.backend import Space
from wstrace_plugins.working_set.working_set import read, working_set

PAGE = 4096
OURS = os.getpid()  # the root folder of another process may be closed to us: then its files have no sections
BASE, HEAP = 0x1000_0000, 0x5000_0000


def dll():
    """Headers, .text of 3 pages, .data of 2."""
    optional = bytearray(112 + 128)
    struct.pack_into("<H", optional, 0, 0x20B)
    struct.pack_into("<Q", optional, 24, BASE)
    struct.pack_into("<II", optional, 56, 6 * PAGE, 0x400)
    struct.pack_into("<I", optional, 108, 16)
    head = struct.pack("<2s58xI", b"MZ", 0x80).ljust(0x80, b"\0")
    head += struct.pack("<4sHHIIIHH", b"PE\0\0", 0x8664, 2, 0, 0, 0, len(optional), 0) + bytes(optional)
    for name, rva, pages, flags in ((b".text", PAGE, 3, 0x60000020), (b".data", 4 * PAGE, 2, 0xC0000040)):
        head += struct.pack("<8sIIIIIIHHI", name, pages * PAGE, rva, 0, 0, 0, 0, 0, 0, flags)
    return head.ljust(PAGE, b"\0")


@pytest.fixture
def taken(tmp_path):
    """A snapshot of a process with a DLL and a heap."""
    (tmp_path / "a.dll").write_bytes(dll())
    windows = FakeWindows()
    process = windows.process(OURS)
    file = str(tmp_path / "a.dll")
    process.allocations += [
        FakeAllocation(BASE, 6 * PAGE, winapi.MEM_IMAGE, winapi.PAGE_EXECUTE_WRITECOPY, file),
        FakeAllocation(HEAP, 16 * PAGE),
    ]
    shared, private = 0x101, 4
    process.working_set = {BASE: shared, BASE + PAGE: shared, BASE + 2 * PAGE: shared, BASE + 4 * PAGE: private,
                           BASE + 5 * PAGE: shared, HEAP: private}  # fmt: skip
    with Space(OURS, windows) as space:
        return read(space, Dictionary())


def test_each_page_belongs_to_the_section_that_it_begins_in(taken):
    owners = sectioned(taken).by("module")
    assert [(o.name, o.resident // PAGE, o.private // PAGE, o.mapped // PAGE) for o in owners] == [
        ("a.dll!.data(2)", 2, 1, 2), ("a.dll!.text(1)", 2, 0, 3), ("[anon]", 1, 1, 16), ("a.dll", 1, 0, 1),
    ]  # fmt: skip


def test_a_line_has_address_size_sharing_protection_and_section(taken, monkeypatch, capsys):
    """The line of the details list of 1996; runs are cut at the borders of sections, and nowhere else."""
    monkeypatch.setattr(snapshot, "working_set", lambda *_, **__: taken)
    assert main(["snapshot", str(OURS), "--sections"]) == 0
    head, *lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert head.split() == ["address", "KiB", "S/P", "prot", "E", "owner"]
    assert [line.split() for line in lines] == [
        ["10000000", "4", "S", "RO", "a.dll"], ["10001000", "8", "S", "RO", "a.dll!.text(1)"],
        ["10004000", "4", "P", "RW", "a.dll!.data(2)"], ["10005000", "4", "S", "RO", "a.dll!.data(2)"],
        ["50000000", "4", "P", "RW", "[anon]"],
    ]  # fmt: skip
    assert main(["snapshot", str(OURS), "--sections", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["address"], run["pages"], run["owner"]) for run in runs] == [
        (BASE, 1, "a.dll"), (BASE + PAGE, 2, "a.dll!.text(1)"), (BASE + 4 * PAGE, 1, "a.dll!.data(2)"),
        (BASE + 5 * PAGE, 1, "a.dll!.data(2)"), (HEAP, 1, "[anon]"),
    ]  # fmt: skip


@pytest.mark.skipif(system() != "linux", reason="reads this process as Linux shows it")
def test_the_sections_add_up_to_the_total():
    taken = working_set()
    owners = sectioned(taken).by("module")
    assert sum(owner.resident for owner in owners) == taken.total_bytes
    assert sum(owner.private for owner in owners) == taken.private_bytes
    assert sum(owner.mapped for owner in owners) == sum(owner.mapped for owner in taken.by("module"))
    assert any("!.text(" in owner.name for owner in owners)
    modules = {owner.name: owner.resident for owner in taken.by("module")}
    assert next(owner.resident for owner in owners if owner.name == "[heap]") == modules["[heap]"]


def test_protections_in_words():
    import numpy as np

    flags = np.array([PAGE_READ, PAGE_READ | PAGE_WRITE, PAGE_READ | PAGE_WRITE | PAGE_COPY_ON_WRITE, PAGE_EXECUTE, 0])
    assert protections(flags) == ["RO", "RW", "CW", "--", "--"]
