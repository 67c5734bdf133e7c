"""Launchers: what their files tell of the interpreter behind them, and the program that is held when they start it."""

import importlib.util
import io
import zipfile
from pathlib import Path

import pytest
from kit.windows_machine import machine

from wstrace.errors import Unavailable
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import launchers
from wstrace_plugins.os.windows.backend import WindowsTarget
from wstrace_plugins.os.windows.resolve import resolve


def script_zip(main="__main__.py"):
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr(main, "print(1)")
    return zipped.getvalue()


def pip_launcher(interpreter, quoted=False):
    """distlib: stub, shebang line, zip."""
    words = f'"{interpreter}"' if quoted else str(interpreter)
    return b"MZ" + b"\0" * 5000 + b"#!" + words.encode() + b"\r\n" + script_zip()


@pytest.fixture
def python(tmp_path):
    path = tmp_path / "base dir" / "python.exe"
    path.parent.mkdir()
    path.write_bytes(b"MZ")
    return str(path)


@pytest.mark.parametrize("quoted", [False, True])
def test_the_interpreter_stands_in_the_launchers_file(tmp_path, python, quoted):
    tool = tmp_path / "tool.exe"
    tool.write_bytes(pip_launcher(python, quoted))
    assert launchers.interpreter_of(str(tool)) == python
    found = resolve([str(tool), "a", "b"])
    assert found.path == python
    assert found.arguments == [python, str(tool), "a", "b"]


@pytest.mark.parametrize("content", [pip_launcher("/nowhere/python.exe"), b"MZ"])
def test_a_launcher_that_leads_nowhere_is_a_program(tmp_path, content):
    tool = tmp_path / "tool.exe"
    tool.write_bytes(content)
    assert launchers.interpreter_of(str(tool)) == ""
    assert resolve([str(tool)]).path == str(tool)


PIP = importlib.util.find_spec("pip")
STUBS = sorted(Path(PIP.origin).parent.glob("_vendor/distlib/*.exe")) if PIP is not None else []


@pytest.mark.skipif(not STUBS, reason="no pip with stubs for Windows (Debian takes them out)")
@pytest.mark.parametrize("stub", STUBS, ids=lambda path: path.name)
def test_the_stubs_that_pip_has(tmp_path, python, stub):
    tool = tmp_path / "tool.exe"
    tool.write_bytes(stub.read_bytes() + pip_launcher(python)[5002:])
    assert launchers.interpreter_of(str(tool)) == python
    tool.write_bytes(stub.read_bytes())
    assert launchers.interpreter_of(str(tool)) == ""


def test_a_program_that_cannot_be_resumed_gives_the_error_of_its_status(monkeypatch):
    """NtResumeProcess gives an NTSTATUS, of which FormatMessage knows nothing."""
    windows = machine()
    monkeypatch.setattr(winapi, "RtlNtStatusToDosError", windows.RtlNtStatusToDosError)
    monkeypatch.setattr(winapi, "NtResumeProcess", lambda handle: 0xC0000022 - (1 << 32))  # STATUS_ACCESS_DENIED
    target = WindowsTarget(7, "python.exe", 4, launched=True)
    with pytest.raises(Unavailable, match="NtResumeProcess of pid 7 failed with 5 "):
        target.resume()
