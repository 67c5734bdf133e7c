"""Titles: of thousands of processes only those are touched whose time has come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("only on Linux", allow_module_level=True)

from wstrace_plugins.page_faults.linux.live import Live, LiveProcesses
from wstrace_plugins.page_faults.linux.titles import Titles

MODULE = "wstrace_plugins.page_faults.linux.titles"


class Unwalked(LiveProcesses):
    """Live processes that nobody may go through one by one."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all processes were gone through")


class Side:
    """A side band as far as titles need one."""

    def __init__(self) -> None:
        self.live, self.told = Unwalked(), list[tuple[int, bytes]]()

    def titled(self, pid: int, time_ns: int, title: bytes) -> bool:
        self.told.append((pid, title))
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(f"{MODULE}.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(f"{MODULE}.procfs", SimpleNamespace(title=lambda pid: b"title of %d" % pid))
    return now


def looked_at(side: Any, titles: Titles, clock: list[float], seconds: float) -> list[int]:
    side.told.clear()
    until = clock[0] + seconds
    while clock[0] < until:
        clock[0] += 0.05
        titles.look_if_due()
    return [pid for pid, _ in side.told]


def test_processes_are_looked_at_soon_and_then_ever_more_rarely(clock: list[float]) -> None:
    side: Any = Side()
    titles = Titles(side)
    for pid in range(1, 201):
        side.live[pid] = Live(0, 0, {pid})
    first = looked_at(side, titles, clock, 0.25)
    assert set(first) == set(range(1, 201))
    assert looked_at(side, titles, clock, 60)
    later = looked_at(side, titles, clock, 60)
    assert 0 < len(later) <= 200 * 60 / 10 + 200  # 200 processes: each every ten seconds


def test_a_process_that_ended_is_looked_at_no_more_and_its_successor_at_once(clock: list[float]) -> None:
    side: Any = Side()
    titles = Titles(side)
    side.live[7] = Live(0, 0, {7})
    side.live[8] = Live(0, 0, {8})
    looked_at(side, titles, clock, 60)
    del side.live[7]
    side.live[8] = Live(0, 0, {8})  # another process of the same pid
    assert looked_at(side, titles, clock, 0.1) == [8]
    assert 7 not in looked_at(side, titles, clock, 60)


def test_a_process_that_a_record_names_first_is_new(clock: list[float]) -> None:
    side: Any = Side()
    titles = Titles(side)
    side.live.setdefault(9, Live(0, 0, {9}))
    side.live.setdefault(9, Live(0, 0, {9})).threads.add(10)
    assert looked_at(side, titles, clock, 0.1) == [9]
