"""What `wstrace prefetch --compare` tells of its rounds, and when it tells no share of the cold penalty."""

from __future__ import annotations

import sys
from typing import Any, cast

import pytest

from wstrace_plugins.prefetch.backend import Backend
from wstrace_plugins.prefetch.comparing import COLD, COLD_PREFETCHED, WARM, WARM_PREFETCHED, Comparison

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads files ahead on Linux only")


def compared(cold: list[float], prefetched: list[float], warm: list[float]) -> tuple[str, Any]:
    found = Comparison(["it"], [], cast(Backend, None))
    found.seconds = {COLD: cold, COLD_PREFETCHED: prefetched, WARM: warm, WARM_PREFETCHED: warm}
    found.majors = {way: [0] * len(warm) for way in found.seconds}
    (told,) = (line for line in found.lines() if "penalty" in line)
    return told, found.plain()["share"]


def test_the_share_of_the_penalty_that_the_list_takes_off():
    told, share = compared([3, 3, 3.2], [2, 2, 2.2], [1, 1, 1])
    assert told == "the list takes off 1.0 s of the cold penalty of 2.0 s: 50% (medians of 3 rounds; faster in 3)"
    assert share == 0.5


@pytest.mark.parametrize("rounds", [1, 2])
def test_few_rounds_tell_no_share(rounds):
    """In one round it was -340 % as easily as 90 %."""
    told, share = compared([3.0] * rounds, [2.0] * rounds, [1.0] * rounds)
    assert told.startswith("too few rounds to tell how much of the cold penalty the list takes off: give --runs 3")
    assert share is None


@pytest.mark.parametrize("cold", [[1.01, 1.01, 1.01, 1.01], [1.5, 1.5, 1.5, 0.5, 0.5]], ids=["small", "now and then"])
def test_a_penalty_that_is_chance_tells_no_share(cold):
    told, share = compared(cold, [0.9] * len(cold), [1.0] * len(cold))
    assert told.startswith("no cold penalty to speak of: ")
    assert share is None
