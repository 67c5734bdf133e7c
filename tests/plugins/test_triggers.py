"""Triggers: how they are written, and when they fire, with scripted sizes."""

import pytest

from wstrace.errors import UsageError
from wstrace.firing import ENDED
from wstrace.interfaces import Context
from wstrace.testing import ScriptedTarget
from wstrace_plugins.working_set import watching
from wstrace_plugins.working_set.triggers import TriggersSource, WatchedProcesses
from wstrace_plugins.working_set.watching import parse_conditions

MIB = 1 << 20
SECOND = 1_000_000_000


class Scripted:
    """A process whose size is read once a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *on: str, pause: float = 5.0) -> None:
        self.seconds = 100
        monkeypatch.setattr(watching, "now_ns", lambda: self.seconds * SECOND)
        self.target = ScriptedTarget(7, "/usr/bin/api")
        self.watched = WatchedProcesses(Context(targets=(self.target,)), parse_conditions(on), pause)
        monkeypatch.setattr(self.watched, "pids", lambda: [7])

    def fires(self, *sizes: int) -> list[str]:
        """What fires at sizes in MiB, with the second from the first on: `rss=5MiB@3`."""
        found = []
        for size in sizes:
            self.watched.size = lambda size=size: size * MIB
            found += [f"{one.text}@{self.seconds - 100}" for one in self.watched.read()]
            self.seconds += 1
        return found


def test_a_size_fires_once_and_again_after_it_was_clearly_below(monkeypatch):
    script = Scripted(monkeypatch, "rss=100MiB")
    assert script.fires(50, 99, 100, 120, 95, 130) == ["rss=100MiB@2"]
    assert script.fires(89, 100, 100) == ["rss=100MiB@7"]


def test_a_size_does_not_fire_within_the_pause(monkeypatch):
    script = Scripted(monkeypatch, "rss=100MiB", pause=10)
    assert script.fires(100, 50, 100, 50, 100) == ["rss=100MiB@0"]
    assert script.fires(*[50] * 6, 100) == ["rss=100MiB@11"]


def test_a_growth_fires_for_what_was_gained_since_the_last_one(monkeypatch):
    script = Scripted(monkeypatch, "growth=50MiB/3s", pause=1)
    assert script.fires(100, 110, 120, 130, 140) == [], "30 MiB in 3 s"
    assert script.fires(171) == ["growth=50MiB/3s@5"]
    assert script.fires(171, 180, 190) == []
    assert script.fires(221) == ["growth=50MiB/3s@9"]


def test_the_end_fires_when_all_have_ended_and_keeps_the_last_size(monkeypatch):
    script = Scripted(monkeypatch, "end")
    assert script.fires(70, 80) == []
    script.watched.ending = True
    assert script.fires(80) == [], "it goes on"
    script.target.wait = lambda timeout: 0
    assert script.fires(0) == ["end@3"]
    assert script.fires(0) == []
    firing = script.watched.firing(parse_conditions(["end"])[0], ())
    assert (firing.who, firing.how, firing.n_bytes, firing.last_look_ns) == ("api", ENDED, 80 * MIB, 0)
    assert firing.since(101 * SECOND) == (101 * SECOND, 80 * MIB)


def test_one_without_a_time_is_refused_with_the_time_to_write():
    for text, better in (("growth=1MiB", "growth=1MiB/30s"), ("psi=300ms", "psi=300ms/2s")):
        with pytest.raises(UsageError, match="says no time") as refused:
            TriggersSource(on=(text,))
        assert str(refused.value).endswith(f"write {better}")
        TriggersSource(on=(better,))


@pytest.mark.parametrize(
    "text", ["rss", "rss=", "rss=much", "growth=1MiB/0s", "end=1", "max=90%", "high", "oom", "rss=1MiB/1s", ""]
)
def test_what_is_no_trigger_is_refused_in_one_line(text):
    with pytest.raises(UsageError, match="trigger") as refused:
        TriggersSource(on=(text,))
    assert "rss=400MiB" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_processes_or_cgroups_there_is_nothing_to_watch():
    with pytest.raises(UsageError, match="nothing to watch"):
        TriggersSource(on=("oom_kill",)).start(Context())
