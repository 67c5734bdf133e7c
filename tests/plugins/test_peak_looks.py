"""The source `peak_snapshot` with scripted sizes: when it looks."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from wstrace.interfaces import Context
from wstrace_working_set import peak
from wstrace_working_set.peak import PeakSnapshotSource

MIB = 1 << 20


def looks(monkeypatch: pytest.MonkeyPatch, sizes: list[int], waits: float = 0.0) -> tuple[list[int], dict[str, int]]:
    """The sizes at which a look was taken, of a process read every 10 ms; waits: for a CPU, in each look."""
    clock, taken = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(peak.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(peak.time, "sleep", lambda seconds: None)
    source = PeakSnapshotSource()
    context = Context()
    source._context = context
    monkeypatch.setattr(source, "_pids", lambda: [7])

    def working_set(pid, strings):
        cost = size / (1 << 30) * 0.01
        clock.now += cost + waits
        taken.append(size // MIB)
        return SimpleNamespace(total_bytes=size, cost_seconds=cost, time_ns=1, batches=lambda *_: ())

    monkeypatch.setattr(peak, "working_set", working_set)
    monkeypatch.setattr(source, "_resident", lambda pid: size)
    for size in sizes:  # noqa: B007 - what the two functions return
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
