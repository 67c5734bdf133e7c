"""Combinations: what is distinct among rows that come in runs."""

import numpy as np
import pytest

from wstrace.analysis.tally import Numbers, begins, combinations


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


@pytest.mark.parametrize("most", [100, 1 << 32])
def test_numbers_are_equal_where_values_are(most):
    """Of many more values than the table of the last ones has slots, in batches; past the limit they are 0."""
    rng = np.random.default_rng(most)
    known, number_of = Numbers(most), dict[int, int]()
    for _ in range(6):
        values = rng.integers(1, 300_000, 100_000).astype("u8")
        numbers, first = known.of(values)
        new = {int(values[row]): number for number, row in enumerate(first.tolist(), 1 + len(number_of))}
        number_of |= new
        assert numbers.tolist() == [number_of.get(value, 0) for value in values.tolist()]
    assert len(number_of) == 99 if most == 100 else len(number_of) > 1 << 17
