"""When the source `final_snapshot` asks whether its target executes another program: by a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import wstrace_plugins.working_set.backend
import wstrace_plugins.working_set.working_set
from wstrace.errors import Unavailable
from wstrace.interfaces import Context
from wstrace.testing import ScriptedTarget
from wstrace_plugins.working_set.backend import KeeperFailed
from wstrace_plugins.working_set.final import FinalSnapshotSource


class Machine:
    """A keeper and what it holds, a target and a clock: waiting for the target moves the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.looks, self.ends, self.executes = 1000.0, list[float](), float("inf"), float("inf")
        self.held = 0
        target = ScriptedTarget()
        monkeypatch.setattr(target, "wait", self._wait)
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        backend = SimpleNamespace(make_keeper=lambda: SimpleNamespace(hold=self._hold, ended=False, close=lambda: None))
        monkeypatch.setattr(wstrace_plugins.working_set.backend, "backend", lambda: backend)
        self.source = FinalSnapshotSource()
        self.source.start(Context(targets=(target,)))

    def _wait(self, timeout: float) -> int | None:
        self.now = min(self.now + timeout, max(self.now, self.ends))
        return 0 if self.now >= self.ends else None

    def _hold(self, pid: int) -> Any:
        self.held += 1
        return SimpleNamespace(look=self._look, close=lambda: None)

    def _look(self) -> bool:
        self.looks.append(self.now)
        if self.now < self.executes:
            return True
        self.executes = float("inf")
        return False

    def run(self, seconds: float) -> None:
        """Drains as a session does, for so long."""
        until = self.now + seconds
        while self.now < until and not self.source.finished:
            before = self.now
            list(self.source.drain(0.1))
            assert self.now - before <= 0.1 + 1e-9, "a call takes no longer than it was given"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_it_looks_ever_more_rarely_down_to_twice_a_second(machine: Machine) -> None:
    machine.run(10)
    assert len(machine.looks) < 30, "each look reads two files of /proc"
    gaps = [late - early for early, late in zip(machine.looks, machine.looks[1:], strict=False)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(0.5)


def test_after_another_program_it_looks_often_again(machine: Machine) -> None:
    machine.run(5)
    machine.executes = began = machine.now
    machine.run(1)
    assert machine.held == 2
    assert sum(at >= began for at in machine.looks) > 5


def test_a_target_that_ends_is_taken_at_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[float]()
    monkeypatch.setattr(wstrace_plugins.working_set.working_set, "read", lambda *_: taken.append(machine.now))
    machine.run(5)
    machine.ends = machine.now + 0.01
    machine.run(10)
    assert taken == [pytest.approx(machine.ends)]
    assert machine.source.finished


@pytest.mark.parametrize(
    ("refusal", "lacking"),
    [
        (KeeperFailed("cannot start it"), ["the resident pages at the exit: cannot start it"]),
        (Unavailable("this system has none"), []),  # wstrace doctor says so
    ],
)
def test_a_keeper_that_cannot_be_made_is_told(
    monkeypatch: pytest.MonkeyPatch, refusal: Unavailable, lacking: list[str]
) -> None:
    def refused() -> Any:
        raise refusal

    monkeypatch.setattr(wstrace_plugins.working_set.backend, "backend", lambda: SimpleNamespace(make_keeper=refused))
    source, context = FinalSnapshotSource(), Context(targets=(ScriptedTarget(),))
    source.start(context)
    assert context.info.lacking == lacking
    assert source.statistics()["missed"] == len(lacking)
    assert source.finished
