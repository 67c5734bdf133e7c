"""The limits: a model of a machine whose faults cost what they cost, and the CPU that the daemon then takes."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from daemon_scripted import Faulting

from wstrace.batch import Batch
from wstrace.interfaces import Context, Source
from wstrace.schema import MARK
from wstrace.testing import batch_of
from wstrace_plugins.daemon.limits import Governed, Limits

STEP = 0.1  # seconds between two reads of the kernel's buffers


def simulate(
    limits: Limits, seconds: float, rate: float, *, each: float = 1e-6, idle: float = 0.003, side: float = 0.0
):
    """(CPU seconds used, share of the reads that were put off) with so many faults a second of `each` CPU seconds."""
    now = used = 0.0
    looked = waited = 0
    while now < seconds:
        now += STEP
        if limits.rest(now, used):
            waited += 1
        else:
            used += STEP * (rate / limits.every * each + idle + side)
        if now - looked >= 1:
            looked += 1
            limits.look(now, used, 0)
    return used, waited * STEP / seconds


@pytest.mark.parametrize("rate", [100, 10_000, 200_000, 2_000_000])
def test_sampling_keeps_the_cpu(rate):
    limits = Limits(0.05, 1 << 30, 0.0, 0.0)
    used, waited = simulate(limits, 60, rate)
    assert used <= 0.05 * 60
    assert (limits.every == 1) == (rate <= 10_000)
    assert waited < 0.3  # sampling, not waiting, does it: at 2M faults a second behind the first seconds


def test_what_sampling_does_not_lower_is_put_off():
    limits = Limits(0.05, 1 << 30, 0.0, 0.0)
    used, waited = simulate(limits, 60, 100, side=0.5)
    assert used <= 0.05 * 60 + 0.5 * STEP
    assert waited > 0.5


def test_a_storm_that_is_over_is_followed_by_every_fault():
    limits = Limits(0.05, 1 << 30, 0.0, 0.0)
    simulate(limits, 20, 200_000)
    assert limits.every > 1
    later = 0.0
    for second in range(21, 121):
        later += 0.003
        limits.look(second, limits._used + 0.003, 0)
    assert limits.every == 1


def test_a_read_in_every_other_second_is_followed_by_every_fault():
    """What is read every two seconds is used in one of them: their average is what counts."""
    limits, used = Limits(0.05, 1 << 30, 0.0, 0.0), 0.0
    limits.every = 16
    for second in range(1, 61):
        used += 0.022 * (second % 2)
        limits.look(second, used, 0)
    assert limits.every == 1


def test_it_does_not_swing_between_all_and_few():
    limits, seen = Limits(0.05, 1 << 30, 0.0, 0.0), []
    used = 0.0
    for second in range(1, 121):
        used += 200_000 / limits.every * 1e-6 + 0.003
        limits.look(second, used, 0)
        seen.append(limits.every)
    assert len(set(seen[10:])) == 1


def test_a_busy_second_within_what_was_saved_is_not_sampled():
    """The limit is on an average: processes are met at once, a read may fall into one second or the next."""
    limits, used = Limits(0.05, 1 << 30, 0.0, 0.0), 0.0
    for second in range(1, 120):
        used += 0.1 if second % 10 == 0 else 0.01
        limits.look(second, used, 0)
        limits.rest(second, used)
        assert limits.every == 1


def test_memory_over_the_limit_is_told_and_forgotten():
    limits = Limits(0.05, 100, 0.0, 0.0)
    limits.look(1.0, 0.0, 101)
    assert limits.over
    limits.look(2.0, 0.0, 99)
    assert not limits.over


def test_losses_are_followed_by_sampling_although_little_was_used():
    limits = Limits(0.05, 1 << 30, 0.0, 0.0)
    for second, lost in enumerate([0, 10, 10, 500, 900], 1):
        limits.look(second, 0.001 * second, 0, lost)
    assert limits.every == 4


def test_working_off_what_came_before_does_not_end_in_nothing_being_recorded():
    limits, used = Limits(0.05, 1 << 30, 0.0, 0.0), 0.0
    for second in range(1, 6):  # five seconds of a whole CPU, whatever is recorded now
        used += 1.0
        limits.look(second, used, 0)
    assert limits.every == 16


def test_what_the_start_used_is_not_held_against_what_follows():
    limits = Limits(0.05, 1 << 30, 0.0, 0.0)
    limits.open(2.0, 1.0)
    assert limits.rest(2.0, 1.0) == 0
    limits.look(3.0, 1.01, 0)
    assert limits.every == 1


class Looking(Source):
    """A source of its own time, as that which waits for a cgroup's limit."""

    name = "looking"
    streams = (MARK,)

    def start(self, context: Context) -> None:
        pass

    def drain(self, timeout: float) -> Iterable[Batch]:
        yield batch_of(MARK)

    def stop(self) -> Iterable[Batch]:
        return ()


@pytest.mark.parametrize(("source", "read"), [(Faulting(), False), (Looking(), True)])
def test_only_page_faults_wait_while_the_account_is_overdrawn(source, read):
    limits = Limits(0.05, 1 << 30, time.monotonic(), time.process_time() - 1000)
    governed = Governed(source, limits)
    source.start(Context())
    assert bool(list(governed.drain(0.01))) == read
