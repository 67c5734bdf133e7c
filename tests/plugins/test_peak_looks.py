"""The source `peak_snapshot` with scripted sizes: when it looks."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from wstrace.interfaces import Context
from wstrace_plugins.working_set import peak
from wstrace_plugins.working_set.peak import PeakSnapshotSource

MIB = 1 << 20


def looks(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], waits: float = 0.0, **options: float
) -> tuple[list[int], dict[str, int]]:
    """The sizes at which a look was taken, of a process of these sizes every 10 ms; waits: for a CPU, in each look."""
    clock, taken = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(peak.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(peak.time, "sleep", lambda seconds: None)
    source = PeakSnapshotSource(**options)
    context = Context()
    source._context = context
    monkeypatch.setattr(source, "_pids", lambda: [7])

    def working_set(pid, strings):
        cost = size / (1 << 30) * 0.01
        clock.now += cost + waits
        taken.append(size // MIB)
        return SimpleNamespace(total_bytes=size, cost_seconds=cost, time_ns=1, batches=lambda *_: ())

    monkeypatch.setattr("wstrace_plugins.working_set.working_set.working_set", working_set)
    monkeypatch.setattr(source, "_resident", lambda pid: size)
    for number, size in enumerate(sizes):  # noqa: B007 - what the two functions return
        if number % round(options.get("interval", 0.01) / 0.01) == 0:
            source._look_if_larger()
        clock.now += 0.01
    list(source.stop())
    return taken, context.info.extra["peak_snapshot"]


@pytest.mark.parametrize("waits", [0.0, 0.04], ids=["idle", "busy"])
def test_a_peak_of_half_a_second_is_seen_whole(monkeypatch, waits):
    """GIVEN a process that grows to 2 GiB in 0.1 s and holds them for 0.5 s WHEN looks wait THEN one has them all."""
    growing = np.linspace(200, 2048, 10).astype(int).tolist()
    taken, told = looks(monkeypatch, [n * MIB for n in (*growing, *[2048] * 50, *[100] * 10)], waits)
    assert max(taken) == 2048
    assert told["largest"] == told["bytes"] == 2048 * MIB


def test_a_slow_growth_is_followed_and_a_short_peak_is_known(monkeypatch):
    slow = [(100 + n // 10) * MIB for n in range(200)]
    taken, told = looks(monkeypatch, [*slow, 1 << 30, *[100 * MIB] * 3])
    assert taken[0] == 100
    assert max(b - a for a, b in itertools.pairwise(taken[:-1])) <= 4
    assert told["largest"] == 1 << 30


@pytest.mark.parametrize("grows", [0.1, 1, 4])
def test_looks_take_no_more_than_their_share_and_still_see_a_peak(monkeypatch, grows):
    """GIVEN a process that grows to 2 GiB, holds them for 2 s, and starts anew WHEN looks may take 1 % of a CPU."""
    growing = np.linspace(20, 2048, round(grows * 100)).astype(int).tolist()
    once = [n * MIB for n in (*growing, *[2048] * 200, *[100] * 100)]
    taken, told = looks(monkeypatch, once * 3, interval=0.1, max_cpu=0.01)
    assert told["bytes"] == 2048 * MIB
    assert sum(taken) / 1024 * 0.01 <= 0.01 * len(once) * 3 * 0.01 + 0.02, "10 ms per GiB, and one look ahead"
    assert taken.count(2048) == 1


def test_sums_are_not_taken_of_processes_that_end_while_they_are_read(monkeypatch):
    """GIVEN two processes of 100 MiB each WHEN one ends while their pages are read THEN no sums of both are told.

    The shares of both with the pages of one came out of it: more pss than distinct pages (seen on 6.12, emulated).
    """
    sizes, clock = {7: 100 * MIB, 8: 100 * MIB}, SimpleNamespace(now=100.0)
    monkeypatch.setattr(peak.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(
        "wstrace_plugins.working_set.working_set.working_set",
        lambda pid, strings: SimpleNamespace(pid=pid, total_bytes=sizes[pid], cost_seconds=0.0, time_ns=1),
    )

    def distinct(pids):
        sizes[8] = 0
        return sum(sizes[pid] for pid in pids)

    source = PeakSnapshotSource()
    source._context = Context()
    source._backend = SimpleNamespace(accounted=lambda pid: SimpleNamespace(pss=sizes[pid]), distinct=distinct)
    monkeypatch.setattr(source, "_pids", lambda: list(sizes))
    monkeypatch.setattr(source, "_resident", sizes.__getitem__)
    source._look_if_larger()
    clock.now += 1
    source._sum_if_due()
    assert "sums" not in source._context.info.extra
