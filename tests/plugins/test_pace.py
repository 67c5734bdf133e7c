"""The pace at which the kernel's buffers are read: rarer while nothing comes, and ended at once."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

if sys.platform != "linux":
    pytest.skip("only on Linux", allow_module_level=True)

from wstrace_plugins.page_faults.linux.pace import Pace


def rests(pace: Pace, news: list[bool]) -> list[float]:
    found = []
    for one in news:
        pace.has_read(news=one)
        found.append(round(pace.rest, 3))
    return found


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wstrace_plugins.page_faults.linux.pace.time", SimpleNamespace(monotonic=lambda: 5.0))


def test_the_pause_grows_while_nothing_comes_and_is_short_again_with_the_first_record() -> None:
    assert rests(Pace(0.1), [True, False, False, False, True, False]) == [0.1, 0.2, 0.4, 0.4, 0.1, 0.2]


def test_a_pace_that_is_slower_stays() -> None:
    assert rests(Pace(2.0), [True, False, False]) == [2.0, 2.0, 2.0]


def test_a_wait_ends_when_the_session_stops_or_a_buffer_fills() -> None:
    filled, fills = os.pipe()
    pace = Pace(60.0)
    pace.watch([filled])
    assert not pace.wait(0)
    os.write(fills, b"x")
    assert pace.wait(600)
    os.read(filled, 1)
    assert not pace.wait(0)
    pace.wake()
    assert pace.wait(600)
    pace.close()
    pace.wake()  # the session may stop when the source has ended
    for fd in (filled, fills):
        os.close(fd)
