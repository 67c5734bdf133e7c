"""wstrace.mapped_file(): the file at an address of this process and of another one, on Linux."""

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import pytest

import wstrace
from wstrace.errors import TargetExited

if sys.platform != "linux":
    pytest.skip("only on Linux", allow_module_level=True)


def address_of(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def test_every_line_of_maps():
    """GIVEN a process that waits WHEN each of its mappings is requested THEN the answer is its line in maps."""
    code = "import sys, mmap; m = mmap.mmap(-1, 1 << 20); print('x', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
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


def test_odd_and_deleted_names(tmp_path):
    path = tmp_path / "a b\nc\tü (deleted) x"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        address = address_of(mapped)
        assert wstrace.mapped_file(address + 5000) == str(path)
        path.unlink()
        assert wstrace.mapped_file(address) == str(path)


def test_addresses_without_a_file():
    with mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as anonymous:
        assert wstrace.mapped_file(address_of(anonymous)) is None
    for nothing in (0, 1, 1 << 62, (1 << 64) - 1, 1 << 64, -1):
        assert wstrace.mapped_file(nothing) is None


def test_a_process_that_is_gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(TargetExited, match=str(process.pid)):
        wstrace.mapped_file(0x1000, process.pid)
