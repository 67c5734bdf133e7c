"""Which snapshot of resident pages counts, once for every view."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstrace.analysis.moments import LastSnapshots
from wstrace.batch import Batch, SnapshotPart
from wstrace.schema import PAGE_GUARD, PAGE_SWAPPED, PAGE_ZERO, RESIDENT_PAGES


def part(pages: int, flags: int = 0, **header: Any) -> Batch:
    columns = {"start": np.zeros(1, "u8"), "pages": np.array([pages], "u4"), "flags": np.array([flags], "u2")}
    return Batch(RESIDENT_PAGES, columns, snapshot=SnapshotPart.from_dict(header))


def counted(limit: int = 4096) -> LastSnapshots[list[int]]:
    return LastSnapshots(list, lambda pages, batch: pages.extend(batch["pages"].tolist()), limit=limit)


@pytest.mark.parametrize("flag", [PAGE_SWAPPED, PAGE_ZERO, PAGE_GUARD])
def test_only_resident_pages_are_counted(flag):
    last = counted()
    last.add(part(3, flag, pid=7, snap=1, part=0, last=False, t=1))
    last.add(part(4, 1, pid=7, snap=1, part=1, last=True, t=1))
    assert list(last) == [((0, 7), [4])]


def test_processes_past_the_limit_are_forgotten_and_those_of_two_hosts_are_two():
    last = counted(limit=2)
    for pid in range(5):
        last.add(part(pid, pid=pid, snap=1, part=0, last=True, t=1))
    assert list(last) == [((0, 3), [3]), ((0, 4), [4])]
    last.add(part(8, pid=4, snap=1, part=0, last=True, t=2, host=1))
    assert list(last) == [((0, 4), [4]), ((1, 4), [8])]
    last.add(part(5, pid=7, snap=2, part=0, last=False, t=3, host=2))
    assert list(last) == [((1, 4), [8])]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 4), st.integers(1, 4)), max_size=12)
)  # pid, time, parts that come, parts that there are
def test_it_is_what_a_naive_reading_gives(snapshots):
    last, naive = counted(), dict[int, tuple[int, list[int]]]()
    for number, (pid, time, come, parts) in enumerate(snapshots):
        for i in range(min(come, parts)):
            last.add(part(number * 10 + i, pid=pid, snap=number, part=i, last=i == parts - 1, t=time))
        if come >= parts and (pid not in naive or naive[pid][0] <= time):
            naive[pid] = time, [number * 10 + i for i in range(parts)]
    assert dict(last) == {(0, pid): pages for pid, (_, pages) in naive.items()}
