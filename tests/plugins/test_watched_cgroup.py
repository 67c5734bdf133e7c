"""A watched cgroup with files of v2 as the kernel writes them: what fires, when a look is due, and what is refused."""

import sys
from pathlib import Path

import pytest

from wstrace.errors import Unavailable

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


@pytest.mark.parametrize(
    ("looks", "shown"),
    [
        ([(1, 92), (2, 94)], 2),
        ([(1, 92), (2, 3)], 1),  # only what the kill has left was there to look at
        ([(1, 92), (2, 84)], 2),  # processes that come and go
        ([(1, 3)], 1),
    ],
)
def test_a_kill_has_the_last_snapshot_of_what_was_killed(monkeypatch, tmp_path, looks, shown):
    script = Script(monkeypatch, tmp_path, "oom_kill", "rss=90MiB")
    script.fires(95)
    for seconds, seen in looks:
        script.watched.note_snapshot(seconds * SECOND, 0.0, seen * MIB)
    killed, reached = parse_conditions(["oom_kill", "rss=90MiB"])
    assert script.watched.firing(killed, ()).last_look_ns == shown * SECOND
    assert script.watched.firing(reached, ()).last_look_ns == looks[-1][0] * SECOND


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
