"""Records of the calls of all processes: those of traced ones are given in time, the others are counted."""

from __future__ import annotations

import random
import struct

import pytest
from side_band_records import comm, given, lost, syscall, task

from wstrace.batch import Dictionary
from wstrace.schema import LOSS_DISCARDED
from wstrace_plugins.page_faults.linux.calls import Calls
from wstrace_plugins.page_faults.linux.calls_of_all import CallsOfAll, samples
from wstrace_plugins.page_faults.linux.side_band import SideBand

ENTER, LEAVE, DONTNEED = 900, 901, 4


def sample(pid: int, time_ns: int, number: int, *words: int) -> bytes:
    return syscall(number, time_ns, *words, pid=pid, tid=pid)


@pytest.mark.parametrize("seed", range(5))
def test_each_record_is_given_once_in_its_time_or_counted(seed: int) -> None:
    chance = random.Random(seed)
    made = [sample(chance.randint(1, 9), at, ENTER, *range(chance.randint(1, 5))) for at in range(10, 400)]
    traced = {2, 3, 77}
    held, found, others = CallsOfAll(), [], 0
    for begin, watermark in ((0, 60), (100, 150), (200, 150), (300, 1000)):
        part = samples(b"".join(made[begin : begin + 100]))
        assert part is not None
        held.hold(part)
        records, n = held.give(watermark, traced, keep=True)
        found += records
        others += n
        assert all(time <= watermark for time, *_ in records)
        assert held.passed(2) == []
    assert len(held.passed(5)) == sum(struct.unpack_from("<I", one, 8)[0] == 5 for one in made[141:])
    wanted = [one for one in made if struct.unpack_from("<I", one, 8)[0] in traced]
    assert sorted(record for *_, record in found) == sorted(wanted)
    assert others == len(made) - len(wanted)
    assert (held.coming(2), held.coming(5)) == ([], [])


def test_a_ring_with_a_loss_or_a_torn_end_is_read_record_by_record() -> None:
    one = sample(7, 10, ENTER, 1)
    assert samples(one + lost(3, 20)) is None
    assert samples(one + one[:16]) is None
    assert samples(b"") is not None
    assert samples(one + bytes(8)) is None


def test_the_calls_of_a_process_that_begins_meanwhile_are_its_own() -> None:
    side = SideBand(Dictionary(), children=True, exit_code={}.get, calls=Calls({"madvise": (ENTER, LEAVE)}))
    side.take(comm(b"a", 1, executed=True))
    calls = [sample(pid, at, number, *words) for pid in (11, 12) for at, number, words in (
        (30, ENTER, (0x10000, 0x2000, DONTNEED)), (31, LEAVE, (0,)))]  # fmt: skip
    side.take(b"".join(calls), rare=True)
    side.take(task(7, 20, 11, 11, 7))  # was read behind them, but came before them
    losses = [(row[1], row[2]) for row in given(side, 10**9)["content_loss"] if row[2] == LOSS_DISCARDED]
    assert losses == [(11, LOSS_DISCARDED)]
    assert side.others == 2
