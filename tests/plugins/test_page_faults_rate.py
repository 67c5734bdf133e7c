"""The rate of a trace: each row says for how many faults it stands, wherever a rate was set."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux")


def rates(rate: Any, *times: int) -> list[int] | None:
    columns = rate.with_rates({"time_ns": np.array(times, np.uint64)})
    return columns["sampled"].tolist() if "sampled" in columns else None


def test_every_row_says_it_once_a_rate_was_set_also_where_each_fault_is_recorded():
    from wstrace_plugins.page_faults.linux.arming import Rate

    rate = Rate()
    assert rates(rate, 5) is None
    rate.now_is(1, 10)
    assert rates(rate, 5, 15) == [1, 1]
    rate.now_is(8, 20)
    rate.now_is(1, 30)
    assert rates(rate, 5, 20, 29, 30) == [1, 8, 8, 1]
    assert rates(rate, 40) == [1]


def test_a_rate_from_the_beginning_is_told_too():
    from wstrace_plugins.page_faults.linux.arming import Rate

    assert rates(Rate(10), 5) == [10]
