"""Conditions of runs: what they change while something is started, and that nothing of it stays."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wstrace_plugins.os
from wstrace.conditions import Conditions
from wstrace.errors import Unavailable
from wstrace_plugins.os.linux import libc, page_cache, steady

linux = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: the real kernel")
SHOW = [
    sys.executable,
    "-c",
    "import os; print(os.environ.get('PYTHONHASHSEED'), open('/proc/self/personality').read())",
]


def started() -> str:
    return subprocess.run(SHOW, capture_output=True, text=True, check=True).stdout.strip()


@linux
def test_they_hold_for_what_is_started_meanwhile(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    platform = wstrace_plugins.os.backend("wstrace_plugins.os").platform()
    before = started()
    assert before.startswith("5 ")
    with Conditions(aslr=False, hash_seed=0).held(platform):
        assert started() == f"0 {int(before.split()[1], 16) | 0x40000:08x}"
    assert started() == before
    with Conditions().held(platform):
        assert started() == before


def test_a_baseline_notes_them():
    assert Conditions().versions == {}
    assert Conditions(False, 0, True).versions == {"aslr": "off", "hash seed": "0", "cache": "cold"}


@linux
def test_a_kernel_that_refuses_is_told(monkeypatch):
    monkeypatch.setattr(steady, "_personality", lambda asked: 0 if asked == 0xFFFFFFFF else -1)
    with pytest.raises(Unavailable, match="ASLR cannot be switched off"), steady.without_aslr():
        pass


def cached(path: Path) -> int:
    """Pages of a file in the page cache: mincore(2)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        view = np.frombuffer(memory, "u1")
        found = np.zeros(-(-len(view) // mmap.PAGESIZE), "u1")
        number = libc.number_of(232, x86_64=27, ppc64le=206, s390x=218)
        assert libc.syscall(number, view.ctypes.data, len(view), found.ctypes.data) == 0
        del view
        return int((found & 1).sum())


@linux
def test_only_the_named_files_leave_the_cache(tmp_path):
    named, other = tmp_path / "named", tmp_path / "other"
    for path in (named, other):
        path.write_bytes(bytes(1 << 20))
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if cached(named) != 256:
        pytest.skip("this file system does not cache")
    (tmp_path / "link").symlink_to(other)
    os.mkfifo(tmp_path / "fifo")
    evicted = page_cache.evict(
        [str(named), str(tmp_path / "link"), str(tmp_path / "fifo"), str(tmp_path), "/nowhere/there"]
    )
    assert cached(other) == 256
    assert cached(named) == 0
    assert evicted == (1, 1 << 20, 0, 0)
