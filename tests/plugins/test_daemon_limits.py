"""The limits: a model of a machine whose faults cost what they cost, and the CPU that the daemon then takes."""

import pytest
from kit.daemon_scripted import plugins

from wstrace.errors import UsageError
from wstrace.options import Config
from wstrace_plugins.daemon.limits import Limits
from wstrace_plugins.daemon.settings import Settings

STEP = 0.1  # seconds between two readings of what was used


def simulate(limits: Limits, seconds: float, rate: float, *, idle: float = 0.003, side: float = 0.0):
    """(CPU seconds used, share of the time for which it stood still) with so many faults a second of 1 us each."""
    now = used = still = 0.0
    while now < seconds:
        now += STEP
        if limits.rests(now, used):
            still += STEP
        else:
            used += STEP * (rate / limits.every * 1e-6 + idle + side)
        limits.adapt(now, used, 0)
    return used, still / seconds


@pytest.mark.parametrize("rate", [100, 10_000, 200_000, 2_000_000])
def test_sampling_keeps_the_cpu(rate):
    limits = Limits(0.05, 1 << 30)
    used, still = simulate(limits, 60, rate)
    assert used <= 1.5 * 0.05 * 60
    assert (limits.every == 1) == (rate <= 10_000)
    assert still < 0.75  # sampling, not standing still, does it behind the first seconds


def test_what_sampling_does_not_lower_is_put_off():
    limits = Limits(0.05, 1 << 30)
    used, still = simulate(limits, 60, 100, side=0.5)
    assert used <= 1.5 * 0.05 * 60 + 0.5 * STEP
    assert still > 0.5
    assert not limits.may_begin


def test_a_storm_that_is_over_is_followed_by_every_fault():
    limits = Limits(0.05, 1 << 30)
    used, _ = simulate(limits, 20, 200_000)
    assert limits.every > 1
    for second in range(21, 121):
        used += 0.003
        limits.rests(second, used)
        limits.adapt(second, used, 0)
    assert limits.every == 1
    assert limits.may_begin


def test_a_read_in_every_other_second_is_followed_by_every_fault():
    """What is read every two seconds is used in one of them: their average is what counts."""
    limits, used = Limits(0.05, 1 << 30), 0.0
    limits.every = 16
    for second in range(1, 61):
        used += 0.022 * (second % 2)
        limits.rests(second, used)
        limits.adapt(second, used, 0)
    assert limits.every == 1


def test_it_does_not_swing_between_all_and_few():
    limits, seen = Limits(0.05, 1 << 30), []
    used = 0.0
    for second in range(1, 121):
        used += 200_000 / limits.every * 1e-6 + 0.003
        limits.rests(second, used)
        limits.adapt(second, used, 0)
        seen.append(limits.every)
    assert len(set(seen[20:])) == 1


def test_a_busy_second_within_what_was_saved_is_not_sampled():
    """The limit is on an average: processes are met at once, a read may fall into one second or the next."""
    limits, used = Limits(0.05, 1 << 30), 0.0
    for second in range(1, 120):
        used += 0.1 if second % 10 == 0 else 0.01
        limits.adapt(second, used, 0)
        assert not limits.rests(second, used)
        assert limits.every == 1


def test_losses_are_followed_by_sampling_although_little_was_used():
    limits = Limits(0.05, 1 << 30)
    for second, lost in enumerate([0, 0, 10, 10, 500, 900], 1):
        limits.adapt(second, 0.001 * second, lost)
    assert limits.every == 16


def test_working_off_what_came_before_does_not_end_in_nothing_being_recorded():
    limits, used = Limits(0.05, 1 << 30), 0.0
    for second in range(1, 7):  # five seconds of a whole CPU, whatever is recorded now
        limits.rests(second, used)
        limits.adapt(second, used, 0)
        used += 1.0
    assert limits.every == 16


def test_what_a_storm_took_is_given_back_by_a_session_that_began_in_it():
    limits, used = Limits(0.05, 1 << 30), 0.0
    limits.begin(0.0)
    assert not limits.let_go(16.0, 50 << 20)  # what it needs
    for second in range(17, 31):
        used += 0.1
        limits.rests(second, used)
        limits.adapt(second, used, 0)
    limits.begin(31.0)
    assert not limits.let_go(47.0, 80 << 20)
    for second in range(48, 110):
        limits.rests(second, used)
        limits.adapt(second, used, 0)
    assert not limits.let_go(110.0, 55 << 20)
    assert limits.let_go(110.0, 80 << 20)


GOOD = """
sources = ["faulting:faults=3"]
exporters = ["msgpack"]
[daemon]
max_cpu = 0.02
max_memory = "200MiB"
health = "127.0.0.1:9470"
[msgpack]
path = "/tmp/node.wst"
rotate_bytes = "64MiB"
keep = 10
"""


def test_a_file_says_what_is_traced_and_what_the_daemon_may_take(tmp_path):
    path = tmp_path / "wstrace.toml"
    path.write_text(GOOD)
    settings = Settings(Config.load(str(path), project=False), plugins())
    assert (settings.own.max_cpu, settings.own.max_memory, settings.own.health) == (
        0.02,
        200 << 20,
        ("127.0.0.1", 9470),
    )
    (source,), (exporter,) = settings.make()
    assert (source.name, exporter.name) == ("faulting", "msgpack")
    assert settings.queue_bytes * 2 <= (200 - 64) << 20


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("max_cpu = 0.1", "there is no key 'max_cpu'"),
        ("[daemon]\nmax_cpus = 0.1", "daemon has no option 'max_cpus'; did you mean 'max_cpu'?"),
        ("[daemons]\nmax_cpu = 0.1", "there is no key 'daemons'; did you mean 'daemon'?"),
        ("duration = '5s'", "there is no key 'duration'"),
        ("[daemon]\nmax_cpu = 0", "max_cpu is 0"),
        ("[daemon]\nmax_cpu = [1]", "daemon:max_cpu"),
        ("[daemon]\nmax_memory = 5", "daemon:max_memory: 5 is no text"),
        ("[daemon]\nmax_memory = 'much'", "'much' is not a size"),
        ("[daemon]\nmax_memory = '1MiB'", "max_memory is 1MiB; the daemon itself needs 96MiB"),
        ("[daemon]\nhealth = 'here'", "health is 'here'"),
        ("[daemon]\nhealth = 'unix:/run/wstrace'", "health is 'unix:/run/wstrace'; write 127.0.0.1:9465"),
        ("[daemon]\nhealth = '0.0.0.0:9465'", "it tells what runs on this machine"),
        ("sources = []", "nothing would be traced"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("#" * (1 << 20) + "#", "longer than 1 MiB"),
        ("sources = 'faulting'", "sources is 'faulting'"),
        ("sources = ['faultin']", "did you mean 'faulting'"),
        ("sources = ['faulting:fault=1']", "faulting has no option 'fault'"),
        ("exporters = ['msgpack']", "msgpack needs path"),
        ("[msgpack]\nkeeps = 1", "msgpack has no option 'keeps'; did you mean 'keep'?"),
        ("[daemon", "is no TOML"),
    ],
)
def test_a_wrong_file_is_one_error_that_names_what_is_wrong(text, shown, tmp_path):
    path = tmp_path / "wstrace.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        Settings(Config.load(str(path), project=False), plugins())
    assert shown in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("named", "seconds"), [("page_faults", 2.0), ("page_faults:poll_ms=50", 0.05)])
def test_the_kernel_s_buffers_are_read_every_two_seconds_unless_the_file_says_otherwise(named, seconds, tmp_path):
    path = tmp_path / "wstrace.toml"
    path.write_text(f'sources = ["{named}"]\n')
    (source,), _ = Settings(Config.load(str(path), project=False), plugins()).make()
    assert source._pace.seconds == seconds


def test_a_session_goes_over_its_memory_and_when_it_has_grown_and_there_is_little_to_do():
    limits = Limits(0.05, 200)
    limits.begin(0.0)
    assert limits.let_go(1.0, 201)
    assert not limits.let_go(20.0, 100)  # that is what it needs
    limits.rests(21.0, 0.0)
    assert not limits.let_go(30.0, 114)
    assert limits.rests(31.0, 3.0)
    assert not limits.let_go(31.0, 130), "it is busy"
    assert not limits.rests(200.0, 3.0)
    assert limits.let_go(200.0, 130)
    limits.begin(210.0)
    assert not limits.let_go(230.0, 130)  # that is what it needs now
    assert not limits.let_go(231.0, 140)
