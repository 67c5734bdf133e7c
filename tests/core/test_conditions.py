"""Conditions of runs: what they change while something is started, and that nothing of it stays."""

import subprocess
import sys

import pytest

import wstrace_plugins.os
from wstrace.conditions import Conditions
from wstrace.errors import Unavailable
from wstrace_plugins.os.linux import backend

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
    assert Conditions(False, 0).versions == {"aslr": "off", "hash seed": "0"}


@linux
def test_a_kernel_that_refuses_is_reported(monkeypatch):
    monkeypatch.setattr(backend, "_personality", lambda wanted: 0 if wanted == 0xFFFFFFFF else -1)
    with pytest.raises(Unavailable, match="ASLR cannot be switched off"), backend.LinuxPlatform().without_aslr():
        pass
