"""wstrace.mapped_file: one address, asked of the running system."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import wstrace
from wstrace.errors import TargetExited

if sys.platform != "linux":
    pytest.skip("only on Linux", allow_module_level=True)

from wstrace_mapped_files import linux


@pytest.fixture(params=["PROCMAP_QUERY", "maps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways: the kernel's query, and the listing where the kernel has none."""
    if request.param == "maps":
        monkeypatch.setattr(linux, "_query", lambda pid, address: None)
    elif linux._query(os.getpid(), 0) is None:
        pytest.skip("only on Linux 6.11 and later: PROCMAP_QUERY")
    return request.param


def address_of(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def test_every_mapping_of_this_process_as_maps_has_it(way: str) -> None:
    compared = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        start, end = (int(word, 16) for word in fields[0].split("-"))
        if len(fields) > 5 and fields[5].startswith("/") and start < 1 << 63:
            for address in (start, end - 1):
                assert wstrace.mapped_file(address) == fields[5].removesuffix(" (deleted)")
            compared += 1
    assert compared > 10


def test_memory_without_a_file_and_what_is_not_mapped(way: str) -> None:
    memory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for address in (address_of(memory), 0, 1, 1 << 63, (1 << 64) - 1, 1 << 64, -1):
        assert wstrace.mapped_file(address) is None


def test_odd_and_deleted_names(way: str, tmp_path: Path) -> None:
    path = tmp_path / "a b\nc\tü (deleted) x"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    address = address_of(mapped)
    assert wstrace.mapped_file(address + 5000) == str(path)
    path.unlink()
    assert wstrace.mapped_file(address) == str(path)


def test_another_process(way: str) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(4096))
        file.flush()
        script = (
            "import ctypes, mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0);"
            "print(ctypes.addressof(ctypes.c_char.from_buffer(m)), flush=True); input()"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", script, file.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with child:
            address = int(child.stdout.readline())
            assert wstrace.mapped_file(address, child.pid) == file.name
            assert wstrace.mapped_file(address) != file.name
            child.communicate("\n")
        with pytest.raises(TargetExited):
            wstrace.mapped_file(address, child.pid)
