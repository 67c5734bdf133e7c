"""The control groups of this machine, read as they are."""

import os
import subprocess

import pytest

from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.os.linux.cgroups.tree import Cgroups


def test_a_cgroup_its_id_processes_and_those_below(cgroup):
    cgroups = Cgroups.mounted()
    below = cgroup.make("below")
    one = cgroups.at(cgroup.path)
    assert one.id == cgroup.id != cgroups.at(below.path).id
    assert one.processes() == []
    with subprocess.Popen([*below.joining(), "sleep", "60"], stdout=subprocess.PIPE) as child:
        while child.pid not in one.processes():
            pass
        assert one.processes() == cgroups.at(below.path).processes() == [child.pid]
        assert {cgroup.path, below.path} <= {found.path for found in cgroups.all()}
        child.kill()


def test_its_memory_is_what_its_processes_hold(cgroup):
    cgroups = Cgroups.mounted()
    code = "b = bytearray(32 << 20); print(flush=True); input()"
    with subprocess.Popen([*cgroup.joining(), "python3", "-c", code], stdin=-1, stdout=-1) as child:
        child.stdout.readline()
        try:
            files = cgroups.memory(cgroups.at(cgroup.path))
            current, stat = files.current(), files.stat()
            assert files.max() is None
            assert files.events()["oom_kill"] == 0
        except Unavailable as absent:
            pytest.skip(f"memory is not accounted here: {absent}")
        child.stdin.close()
    assert 32 << 20 <= current < 256 << 20
    assert 32 << 20 <= stat["anon" if "anon" in stat else "rss"] <= current  # v2, v1
    assert stat["pgfault"] >= 0


def test_it_is_removed(cgroup):
    cgroups = Cgroups.mounted()
    one = cgroups.at(cgroup.path)
    held = one.open()
    assert os.fstat(held).st_ino == one.id
    cgroup.remove()
    os.close(held)
    assert not one.exists()
    for ask in (one.open, one.processes, lambda: cgroups.at(cgroup.path), lambda: cgroups.memory(one).current()):
        with pytest.raises(Unavailable):
            ask()
    with pytest.raises(TargetExited, match=f"there is no cgroup {cgroup.path}"):
        one.processes()
