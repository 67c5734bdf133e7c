"""The windows of `wstrace wss`: how many there are, and how long, with scripted costs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from wstrace.testing import ScriptedTarget
from wstrace_plugins.working_set import used
from wstrace_plugins.working_set.backend import Uses


@pytest.mark.parametrize(
    ("cost", "every", "expected"),
    [
        (0.0, None, [2.0]),
        (0.0, 0.5, [0.5] * 4),
        (0.04, 0.5, [0.5, 1.6]),  # clearing and reading hold the target's lock: a twentieth of the time at most
        (0.2, 0.5, [0.5, 8.0]),
    ],
)
def test_windows_are_as_long_as_asked_for_and_longer_where_they_cost_much(monkeypatch, cost, every, expected):
    clock = SimpleNamespace(now=100.0)

    def spend(seconds: float) -> None:
        clock.now += seconds

    class Bits:
        method = "referenced bits"

        def clear(self) -> None:
            spend(cost)

        def read(self) -> Uses:
            spend(cost)
            return Uses([], np.zeros(0, "<u2"), np.zeros(0, np.int64), np.zeros(0, np.int64))

        def close(self) -> None:
            pass

    target = ScriptedTarget(7)
    monkeypatch.setattr(target, "wait", spend)
    monkeypatch.setattr(used, "_attached", lambda pid: target)
    monkeypatch.setattr(used, "backend", lambda: SimpleNamespace(referenced_bits=lambda pid: Bits()))
    monkeypatch.setattr(used.time, "perf_counter", lambda: clock.now)
    assert [window.seconds for window in used.windows(7, 2.0, every)] == pytest.approx(expected)
