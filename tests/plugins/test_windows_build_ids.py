"""Build-ids of loaded images: those of the file, where it is still the one that was loaded; on a stand-in machine."""

import os
import struct

import numpy as np
import pytest
from kit.fake_windows import FakeAllocation, FakeWindows

from wstrace.batch import Dictionary
from wstrace.interfaces import MappedFile
from wstrace.schema import KIND_FILE, KIND_SHIFT, MAP_EXECUTE, OFFSET_UNKNOWN
from wstrace_plugins.mapped_files.spaces import MappingRow as Row
from wstrace_plugins.mapped_files.windows import backend
from wstrace_plugins.mapped_files.windows.backend import build_id
from wstrace_plugins.os.pe import Pe
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.symbols import dbghelp
from wstrace_plugins.symbols.image import ImageFile
from wstrace_plugins.symbols.pe import read_image
from wstrace_plugins.symbols.resolver import OTHER_FILE, ImageResolver

BASE = 0x7FFB_0000_0000


def image(stamp=0x5F000000, size=0x3000, pdb=bytes(range(16)), age=3, path=b"a.pdb", kind=0x40000040):
    """A small PE32+ file of data, or of another kind of section, that names its PDB."""
    optional = bytearray(112 + 128)
    struct.pack_into("<H", optional, 0, 0x20B)
    struct.pack_into("<I", optional, 56, size)
    struct.pack_into("<I", optional, 108, 16)
    struct.pack_into("<II", optional, 112 + 8 * 6, 0x1000, 28)
    head = struct.pack("<2s58xI", b"MZ", 0x80).ljust(0x80, b"\0")
    head += struct.pack("<4sHHIIIHH", b"PE\0\0", 0x8664, 1, stamp, 0, 0, len(optional), 0) + bytes(optional)
    head += struct.pack("<8sIIIIIIHHI", b".rdata", 0x200, 0x1000, 0x200, 0x400, 0, 0, 0, 0, kind)
    record = b"RSDS" + pdb + struct.pack("<I", age) + path + b"\0"
    debug = struct.pack("<IIHHIIII", 0, 0, 0, 0, 2, len(record), 0x1000 + 28, 0x400 + 28) + record
    return head.ljust(0x400, b"\0") + debug.ljust(0x200, b"\0")


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    if os.name != "nt":  # where tmp_path is no path of Windows
        monkeypatch.setattr(backend, "openable", str)

    def build(in_memory, on_disk=None, **row):
        path = tmp_path / "a.dll"
        if on_disk is not None:
            path.write_bytes(on_disk)
        windows = FakeWindows()
        windows.process(7).allocations.append(FakeAllocation(BASE, 0x3000, winapi.MEM_IMAGE, data=in_memory[:0x400]))
        strings = Dictionary()
        values = {"pid": 7, "offset": 0, "path": str(path), **row}
        flags = KIND_FILE << KIND_SHIFT | MAP_EXECUTE
        name = strings.code(values["path"])
        mapping = Row(1, 0, values["pid"], BASE, BASE + 0x3000, values["offset"], name, 0, 0, flags)
        found = build_id(mapping, values["path"], windows)
        assert not windows.handles
        return found

    return build


def test_the_id_is_that_of_the_file_while_it_is_the_one_that_was_loaded(loaded, tmp_path):
    found = loaded(image(), image())
    assert found == bytes(range(16)).hex() + "3"
    with ImageFile(str(tmp_path / "a.dll")) as file:
        assert read_image(file).build_id == found


def test_a_file_that_was_updated_since_is_not_believed(loaded, tmp_path):
    found = loaded(image(), image(stamp=0x60000000, pdb=bytes(16)))
    assert found == loaded(image(), path="\\\\server\\share\\a.dll") == "5f0000003000", "that of stamp and size"
    with ImageFile(str(tmp_path / "a.dll")) as file:
        assert read_image(file).build_id != found


@pytest.mark.parametrize(("pdb", "asked"), [
    (b"a.pdb", True), (rb"C:\build\a.pdb", True), (b"", True),
    (rb"\\server\share\a.pdb", False), (b"//server/a.pdb", False), (rb"\??\UNC\server\a.pdb", False),
])  # fmt: skip
def test_a_pdb_on_a_server_is_not_looked_for(pdb, asked, tmp_path, monkeypatch):
    """dbghelp tries the path that the linker wrote, and a share would get the user's credentials."""
    calls = []
    monkeypatch.setattr(dbghelp, "functions", lambda *call: calls.append(call) or {})
    (tmp_path / "a.dll").write_bytes(image(path=pdb, kind=0x60000020))
    with ImageFile(str(tmp_path / "a.dll")) as file:
        found = read_image(file)
    assert [place.function for place in found.places("a.dll", np.array([0x1010], "<u8"))] == [""]
    assert bool(calls) is asked
    assert found.build_id == bytes(range(16)).hex() + "3"


def test_what_is_no_image_or_gone_has_none(loaded):
    assert loaded(b"MZ" + bytes(1022), image()) == ""
    assert loaded(image(), image(), offset=OFFSET_UNKNOWN) == ""


def test_of_a_process_that_is_gone_the_file_of_that_moment_is_named(loaded, tmp_path):
    """Whatever has its path when a report is made, on another volume with that letter by then, is another build."""
    assert loaded(image(), image(), pid=99) == bytes(range(16)).hex() + "3"
    file = MappedFile(str(tmp_path / "a.dll"), build_id=bytes(range(16)).hex() + "3")
    offsets = np.array([0x1000], "<u8")
    assert ImageResolver().resolve(file, offsets)[0].section == ".rdata"
    (tmp_path / "a.dll").write_bytes(image(pdb=bytes(16)))
    (place,) = ImageResolver().resolve(file, offsets)
    assert (place.section, place.why) == ("", OTHER_FILE)
    assert loaded(image(), b"no image", pid=99) == ""
    assert loaded(image(), image(), pid=99, path="\\\\server\\share\\a.dll") == ""


@pytest.mark.parametrize("damage", [
    (0x3C, 0xFFFFFFF0), (0x84, 0xFFFF0000), (0x80 + 24 + 108, 0xFFFFFFFF), (0x80 + 24 + 112 + 48, 0xFFFFFFFF),
    (0x80 + 24 + 112 + 52, 0xFFFFFFFF), (0x400 + 24, 0xFFFFFFF0), (0x400 + 16, 0xFFFFFFFF),
])  # fmt: skip
def test_hostile_headers_are_bounded(loaded, damage):
    content = bytearray(image())
    struct.pack_into("<I", content, *damage)
    assert len(loaded(bytes(content), bytes(content))) <= 40


def test_an_id_needs_the_magic():
    with pytest.raises(ValueError, match="MZ"):
        Pe(lambda at, size: bytes(size))
