"""A watched cgroup with files of v2 as the kernel writes them: what fires, when a look is due, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wstrace.errors import Unavailable
from wstrace.firing import KILLED, REACHED

if sys.platform != "linux":
    pytest.skip("only on Linux: control groups", allow_module_level=True)

from wstrace_plugins.os.linux.cgroups.memory import MemoryFiles
from wstrace_plugins.os.linux.cgroups.tree import Cgroup
from wstrace_plugins.working_set import watching
from wstrace_plugins.working_set.linux.watched_cgroup import WatchedCgroup, name_of
from wstrace_plugins.working_set.watching import parse_conditions

MIB = 1 << 20
SECOND = 1_000_000_000
CONTAINER = "0123456789ab" + 52 * "c"


class Script:
    """A cgroup whose files are written by hand, read once a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *on: str, limit: str = str(100 * MIB)) -> None:
        self.folder, self.seconds = folder, 100
        self.counts = {"low": 0, "high": 0, "max": 0, "oom": 0, "oom_kill": 0, "oom_group_kill": 0}
        (folder / "memory.max").write_text(limit)
        (folder / "cgroup.procs").write_text("7\n8\n")
        self.write(50)
        monkeypatch.setattr(watching, "now_ns", lambda: self.seconds * SECOND)
        files = MemoryFiles(folder, True, None, "/pod/x")
        self.watched = WatchedCgroup(Cgroup("/pod/x", folder.stat().st_ino, folder), files, parse_conditions(on), 5.0)

    def write(self, size: int, **counted: int) -> None:
        for name, n in counted.items():
            self.counts[name] += n
        (self.folder / "memory.current").write_text(f"{size * MIB}\n")
        (self.folder / "memory.events").write_text("".join(f"{name} {n}\n" for name, n in self.counts.items()))

    def fires(self, size: int, **counted: int) -> list[str]:
        self.seconds += 1
        self.write(size, **counted)
        return [one.text for one in self.watched.read()]


def test_a_kill_at_the_limit_is_told_with_the_limit_and_how_many_there_were(monkeypatch, tmp_path):
    script = Script(monkeypatch, tmp_path, "oom_kill")
    assert script.fires(99) == []
    script.watched.looked(7, 0.0)
    fired = script.watched
    assert script.fires(10, max=5, oom=1, oom_kill=3) == ["oom_kill"]
    firing = fired.firing(parse_conditions(["oom_kill"])[0], ())
    assert (firing.how, firing.n_bytes, firing.what) == (KILLED, 100 * MIB, "oom_kill (3 kills)")
    assert (firing.who, firing.cgroup, firing.last_look_ns) == ("x", "/pod/x", 7)
    assert script.fires(10) == []
    assert script.fires(10, max=5, oom=1, oom_kill=4, oom_group_kill=1) == ["oom_kill"]
    assert fired.firing(parse_conditions(["oom_kill"])[0], ()).what == "oom_kill (the whole group)"


def test_a_kill_for_want_of_others_memory_is_told_with_the_last_size(monkeypatch, tmp_path):
    script = Script(monkeypatch, tmp_path, "oom_kill", limit="max\n")
    assert script.fires(60) == []
    assert script.fires(5, oom_kill=1) == ["oom_kill"]
    firing = script.watched.firing(parse_conditions(["oom_kill"])[0], ())
    assert (firing.n_bytes, firing.what) == (60 * MIB, "oom_kill")


def test_looks_are_due_near_the_limit_with_each_step(monkeypatch, tmp_path):
    script = Script(monkeypatch, tmp_path, "oom_kill")
    due = []
    for size in (50, 89, 90, 91, 92, 93, 94, 99):
        script.fires(size)
        if script.watched.look_is_due():
            due.append(size)
            script.watched.looked(script.seconds * SECOND, 0.0)
    assert due == [90, 92, 94, 99]


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([(1, 92), (2, 94)], 2),
        ([(1, 92), (2, 3)], 1),  # only what the kill has left was there to look at
        ([(1, 92), (2, 84)], 2),  # processes that come and go
        ([(1, 3)], 1),
    ],
)
def test_a_kill_is_told_by_the_last_look_that_saw_what_was_killed(monkeypatch, tmp_path, looks, told):
    script = Script(monkeypatch, tmp_path, "oom_kill", "rss=90MiB")
    script.fires(95)
    for seconds, seen in looks:
        script.watched.looked(seconds * SECOND, 0.0, seen * MIB)
    killed, reached = parse_conditions(["oom_kill", "rss=90MiB"])
    assert script.watched.firing(killed, ()).last_look_ns == told * SECOND
    assert script.watched.firing(reached, ()).last_look_ns == looks[-1][0] * SECOND


def test_a_size_and_a_growth_are_of_the_cgroup(monkeypatch, tmp_path):
    script = Script(monkeypatch, tmp_path, "rss=80MiB", "growth=20MiB/3s")
    assert [script.fires(size) for size in (50, 55, 60, 65)] == [[], [], [], []]
    assert script.fires(81) == ["rss=80MiB", "growth=20MiB/3s"]
    firing = script.watched.firing(parse_conditions(["rss=80MiB"])[0], (7, 8))
    assert (firing.how, firing.n_bytes, firing.pids) == (REACHED, 81 * MIB, (7, 8))
    assert script.watched.pids() == [7, 8]
    (tmp_path / "cgroup.procs").write_text("9\n")
    assert script.watched.pids() == [9]
    script.fires(81)
    assert script.watched.members() == (9, 8, 7), "those that have ended had faults, too"


def test_what_a_cgroup_does_not_count_is_refused(monkeypatch, tmp_path):
    v1 = tmp_path / "v1"
    v1.mkdir()
    (v1 / "memory.failcnt").write_text("0\n")
    (v1 / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\n")
    (v1 / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (v1 / "memory.usage_in_bytes").write_text("4096\n")
    files = MemoryFiles(v1, False, None, "/x")
    cgroup = Cgroup("/x", v1.stat().st_ino, v1)
    with pytest.raises(Unavailable, match="trigger oom_kill: the cgroup /x does not count it"):
        WatchedCgroup(cgroup, files, parse_conditions(["oom_kill"]), 1.0)
    with pytest.raises(Unavailable, match=r"has no memory\.pressure"):
        WatchedCgroup(cgroup, files, parse_conditions(["psi=300ms/2s"]), 1.0)


def test_a_container_is_called_by_its_short_id():
    assert name_of(f"/kubepods.slice/cri-containerd-{CONTAINER}.scope") == "0123456789ab"
    assert name_of("/system.slice/nginx.service") == "nginx.service"
    assert name_of("/") == "/"
