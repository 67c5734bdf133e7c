"""The daemon's file: every key is known, of its type and in its range, or one line names it."""

import pytest
from kit.daemon_scripted import plugins

from wstrace.config import Config
from wstrace.errors import UsageError
from wstrace_plugins.daemon.settings import checked

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
    settings = checked(Config.load(str(path), project=False), plugins())
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
        checked(Config.load(str(path), project=False), plugins())
    assert shown in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there():
    with pytest.raises(UsageError, match=r"/nowhere/wstrace.toml: No such file"):
        checked(Config.load("/nowhere/wstrace.toml", project=False), plugins())


@pytest.mark.parametrize(("named", "seconds"), [("page_faults", 2.0), ("page_faults:poll_ms=50", 0.05)])
def test_the_kernel_s_buffers_are_read_every_two_seconds_unless_the_file_says_otherwise(named, seconds, tmp_path):
    path = tmp_path / "wstrace.toml"
    path.write_text(f'sources = ["{named}"]\n')
    (source,), _ = checked(Config.load(str(path), project=False), plugins()).make()
    assert source._pace.seconds == seconds
