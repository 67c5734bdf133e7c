"""Launchers: what their files tell of the interpreter behind them, and the program that is held when they start it."""

import importlib.util
import io
import os
import struct
import zipfile
from pathlib import Path

import pytest
from kit.windows_machine import machine

from wstrace.errors import Unavailable
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import launchers
from wstrace_plugins.os.windows.backend import WindowsTarget
from wstrace_plugins.os.windows.resolve import resolve

RCDATA, TABLE = 10, 0x8000_0000


def script_zip(main="__main__.py"):
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr(main, "print(1)")
    return zipped.getvalue()


def pip_launcher(interpreter, quoted=False):
    """distlib: stub, shebang line, zip."""
    words = f'"{interpreter}"' if quoted else str(interpreter)
    return b"MZ" + b"\0" * 5000 + b"#!" + words.encode() + b"\r\n" + script_zip()


def uv_launcher(interpreter, kind=1, wide=True, names=("UV_TRAMPOLINE_KIND", "UV_PYTHON_PATH")):
    """uv from 0.8 on: a PE file with RT_RCDATA resources, as the linker lays them out: sorted tables, names, data."""
    names, contents = zip(*sorted(zip(names, (bytes((kind,)), str(interpreter).encode()), strict=True)), strict=True)
    head = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40)
    directories = b"\0" * 16 + struct.pack("<II", 0x1000, 0x1000) + b"\0" * 104
    rest = struct.pack("<H", 0x20B if wide else 0x10B).ljust(108 if wide else 92, b"\0")
    rest += struct.pack("<I", 16) + directories
    coff = b"PE\0\0" + struct.pack("<HHIIIHH", 0x8664, 1, 0, 0, 0, len(rest), 0x22)
    section = b".rsrc\0\0\0" + struct.pack("<IIII", 0x1000, 0x1000, 0x1000, 0x400) + b"\0" * 16
    file = (head + coff + rest + section).ljust(0x400, b"\0")
    tables = struct.pack("<IIHHHH", 0, 0, 0, 0, 0, 1) + struct.pack("<II", RCDATA, TABLE | 24)
    tables += struct.pack("<IIHHHH", 0, 0, 0, 0, len(names), 0)
    texts = 24 + 16 + 8 * len(names) + 24 * len(names) + 16 * len(names)
    languages, data, places, strings = b"", b"", b"", b""
    for i, name in enumerate(names):
        tables += struct.pack("<II", TABLE | (texts + len(strings)), TABLE | (40 + 8 * len(names) + 24 * i))
        entry = 40 + 8 * len(names) + 24 * len(names) + 16 * i
        languages += struct.pack("<IIHHHH", 0, 0, 0, 0, 0, 1) + struct.pack("<II", 0, entry)
        strings += struct.pack("<H", len(name)) + name.encode("utf-16-le")
    for content in contents:
        places += struct.pack("<IIII", 0x1000 + texts + len(strings) + len(data), len(content), 0, 0)
        data += content
    return file + (tables + languages + places + strings + data).ljust(0x1000, b"\0")


#: found by the system's own functions
windows_only = pytest.mark.skipif(os.name != "nt", reason="only on Windows: uv's resources")
MADE = {
    "pip": (pip_launcher, True),
    "pip, quoted": (lambda path: pip_launcher(path, quoted=True), True),
    "uv": (uv_launcher, True),
    "uv, python": (lambda path: uv_launcher(path, 2), False),
    "uv, 32-bit": (lambda path: uv_launcher(path, wide=False), True),
}


@pytest.fixture
def python(tmp_path):
    path = tmp_path / "base dir" / "python.exe"
    path.parent.mkdir()
    path.write_bytes(b"MZ")
    return str(path)


@pytest.mark.parametrize("kind", [pytest.param(one, marks=windows_only if "uv" in one else ()) for one in MADE])
def test_the_interpreter_stands_in_the_launchers_file(tmp_path, python, kind):
    make, script = MADE[kind]
    tool = tmp_path / "tool.exe"
    tool.write_bytes(make(python))
    assert launchers.read(str(tool)) == (python, script)
    found = resolve([str(tool), "a", "b"])
    assert found.path == python
    assert found.arguments == ([python, str(tool), "a", "b"] if script else [str(tool), "a", "b"])


@windows_only
def test_a_path_of_uvs_may_be_relative_to_the_launcher(tmp_path, python):
    tool = tmp_path / "tool.exe"
    tool.write_bytes(uv_launcher(os.path.join("base dir", "python.exe")))
    assert launchers.read(str(tool)).interpreter == python


@pytest.mark.parametrize("content", [
    uv_launcher("/nowhere/python.exe"), uv_launcher("x", 3), uv_launcher("x", names=("OTHER", "UV_PYTHON_PATH")),
    uv_launcher("a\0b"), b"MZ",
])  # fmt: skip
def test_a_launcher_that_leads_nowhere_is_a_program(tmp_path, content):
    tool = tmp_path / "tool.exe"
    tool.write_bytes(content)
    assert launchers.read(str(tool)) is None
    assert resolve([str(tool)]).path == str(tool)


PIP = importlib.util.find_spec("pip")
STUBS = sorted(Path(PIP.origin).parent.glob("_vendor/distlib/*.exe")) if PIP is not None else []


@pytest.mark.skipif(not STUBS, reason="no pip with stubs for Windows (Debian takes them out)")
@pytest.mark.parametrize("stub", STUBS, ids=lambda path: path.name)
def test_the_stubs_that_pip_has(tmp_path, python, stub):
    tool = tmp_path / "tool.exe"
    tool.write_bytes(stub.read_bytes() + pip_launcher(python)[5002:])
    assert launchers.read(str(tool)) == (python, True)
    tool.write_bytes(stub.read_bytes())
    assert launchers.read(str(tool)) is None


def test_a_program_that_cannot_be_resumed_gives_the_error_of_its_status(monkeypatch):
    """NtResumeProcess gives an NTSTATUS, of which FormatMessage knows nothing."""
    windows = machine()
    monkeypatch.setattr(winapi, "RtlNtStatusToDosError", windows.RtlNtStatusToDosError)
    monkeypatch.setattr(winapi, "NtResumeProcess", lambda handle: 0xC0000022 - (1 << 32))  # STATUS_ACCESS_DENIED
    target = WindowsTarget(7, "python.exe", 4, launched=True)
    with pytest.raises(Unavailable, match="NtResumeProcess of pid 7 failed with 5 "):
        target.resume()
