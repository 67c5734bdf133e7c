"""wstrace.mapped_file(): the file at an address of this process and of another one, on Linux."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

import wstrace
from wstrace.errors import TargetExited, Unavailable

if sys.platform != "linux":
    pytest.skip("only on Linux", allow_module_level=True)

from wstrace_plugins.os.linux import libc
from wstrace_plugins.os.linux.procmap_query import Question


@pytest.fixture(params=["PROCMAP_QUERY", "maps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: the question of Linux 6.11, and the listing that all have."""
    if request.param == "maps":

        def refused(*_: object) -> None:
            raise Unavailable("an older kernel")

        monkeypatch.setattr(Question, "ask", refused)


def address_of(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def test_every_line_of_maps(way: None) -> None:
    """GIVEN a process that waits WHEN each of its mappings is asked for THEN the answer is its line in maps."""
    code = "import sys, mmap; m = mmap.mmap(-1, 1 << 20); print('x', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        files = 0
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            fields = line.split(None, 5)
            start, end = (int(word, 16) for word in fields[0].split("-"))
            path = fields[5] if len(fields) > 5 and fields[5].startswith("/") else None
            expected = None if path is None or path.startswith("/dev/zero") else path
            files += expected is not None
            if start < 1 << 63:
                for address in (start, end - 1):
                    assert wstrace.mapped_file(address, process.pid) == expected, line
        assert files > 10
        process.kill()


def test_odd_and_deleted_names(way: None, tmp_path: Path) -> None:
    path = tmp_path / "a b\nc\tü (deleted) x"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        address = address_of(mapped)
        assert wstrace.mapped_file(address + 5000) == str(path)
        path.unlink()
        assert wstrace.mapped_file(address) == str(path)


def test_addresses_without_a_file(way: None) -> None:
    with mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as anonymous:
        assert wstrace.mapped_file(address_of(anonymous)) is None
    for nothing in (0, 1, 1 << 62, (1 << 64) - 1, 1 << 64, -1):
        assert wstrace.mapped_file(nothing) is None


def test_a_process_that_is_gone(way: None) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(TargetExited, match=str(process.pid)):
        wstrace.mapped_file(0x1000, process.pid)


def test_the_question_and_the_listing_agree() -> None:
    """PROCMAP_QUERY, where the kernel has it, says what maps says: of an address that libc has, and of a gap."""
    address = ctypes.cast(ctypes.CDLL(None).puts, ctypes.c_void_p).value
    assert address is not None
    with Question(os.getpid()) as question:
        try:
            found = question.ask(address)
        except Unavailable:
            pytest.skip("only on Linux 6.11 and newer: PROCMAP_QUERY")
        assert found is not None
        assert os.path.basename(found.path).startswith("libc")
        assert question.ask(0x1000) is None


@pytest.mark.parametrize(
    "number", [errno.ENOTTY, errno.EINVAL, errno.E2BIG, errno.ENAMETOOLONG, errno.EPERM, errno.ESRCH, errno.ENOMEM]
)
def test_whatever_the_question_is_refused_with_maps_answers(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """ENOTTY: before Linux 6.11; ENAMETOOLONG: a longer name than the room for it."""
    address = ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value
    assert address is not None
    expected = wstrace.mapped_file(address)
    assert expected is not None
    monkeypatch.setattr(libc, "ioctl", lambda *arguments: -1)
    monkeypatch.setattr(libc, "last_error", lambda: OSError(number, os.strerror(number)))
    assert wstrace.mapped_file(address) == expected
