"""Epoch.at(): what a forked child inherits, where rows came out of order."""

from __future__ import annotations

import random

import pytest

from wstrace_plugins.mapped_files.epoch import Epoch, Fragment, MappingRow

KERNEL = Fragment(1 << 47, 1 << 64, 0, MappingRow(1, 0, 0, 1 << 47, 1 << 64, 0, 0, 0, 0, 0))


def mapping(number: int, start: int, end: int) -> MappingRow:
    return MappingRow(number, 0, 7, start, end, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("seed", range(30))
def test_the_newest_of_overlapping_mappings_counts_at_each_address(seed: int) -> None:
    """GIVEN rows out of order, many from the same start WHEN a child inherits THEN each page has its newest mapping."""
    chance, of = random.Random(seed), Epoch(0, KERNEL)
    for number in range(2, 62):
        start = chance.choice((0, 0, 4, 9))
        end = start + chance.randrange(1, 8)
        of.put(chance.randrange(1, 100), start, end, mapping(number, start, end) if chance.random() < 0.9 else None)
    time = chance.randrange(1, 100)
    was = sorted((f for f in (*of.live, *of.closed) if f.birth <= time < f.death), key=lambda f: f.birth)
    newest = {page: f.mapping.id for f in was for page in range(f.start, f.end)}
    child = of.at(time, time)
    assert {page: f.mapping.id for f in child.live for page in range(f.start, f.end)} == newest
    assert not child.closed
