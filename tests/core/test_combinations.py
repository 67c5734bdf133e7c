"""Combinations: what is distinct among rows that come in runs."""

import numpy as np
import pytest

from wstrace.analysis.tally import begins, combinations


@pytest.mark.parametrize("highest", [3, 1 << 40], ids=["small", "large"])
def test_distinct_rows(highest):
    rng = np.random.default_rng(1)
    one = np.repeat(rng.integers(0, highest, 40), 5).astype("u8")
    other = rng.integers(-2, 3, len(one))
    rows, which = combinations(one, other)
    pairs = list(zip(one.tolist(), other.tolist(), strict=True))
    assert sorted(pairs[row] for row in rows.tolist()) == sorted(set(pairs))
    assert [pairs[rows[at]] for at in which.tolist()] == pairs


def test_nothing_is_distinct_in_no_rows():
    rows, which = combinations(np.zeros(0, "u4"), np.zeros(0, "u1"))
    assert len(rows) == len(which) == 0
    assert not len(begins(np.zeros(0)))
