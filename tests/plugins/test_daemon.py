"""The daemon's life with a scripted source: limits, failures, and its end."""

import signal
import sys

import pytest
from kit.daemon_scripted import Running, daemon

from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_plugins.daemon.command import missing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux")

HEALTH = '[daemon]\nhealth = "127.0.0.1:0"\nmax_cpu = 64\nmax_memory = "64GiB"\n'


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "wstrace.toml"

    def write(text):
        path.write_text(text)
        return path

    return write


def test_it_traces_says_its_state_ends_and_another_goes_on_in_the_same_file(settings, tmp_path):
    out = tmp_path / "node.wst"
    path = settings(f'sources = ["faulting"]\nexporters = ["msgpack"]\n{HEALTH}[msgpack]\npath = "{out}"\n')
    counts = []
    for _ in range(2):
        with daemon(path) as running:
            running.until(lambda running=running: running.facts()["recorded"] > 50)
            facts = running.facts()
            assert running.ask("/health") == (200, "tracing\n")
            assert (facts["state"], facts["lost"], facts["sampled"]) == ("tracing", {}, 1)
            assert facts["memory"]["resident"] > 0
            assert facts["exporters"] == {"msgpack": ""}
            assert running.lines[-1].startswith("tracing every process of this machine; its state: 127.0.0.1:")
        with open_trace(str(out)) as trace:
            counts.append(sum(map(len, trace.batches("page_fault"))))
            assert not trace.info.incomplete
    assert counts[0] >= 50
    assert counts[1] >= counts[0] + 50


def test_past_max_cpu_it_samples_and_each_row_says_for_how_many_it_stands(settings, tmp_path):
    out = tmp_path / "node.wst"
    source = 'sources = ["faulting:faults=10000,spins=0.005"]'
    path = settings(f'{source}\nexporters = ["msgpack"]\n{HEALTH.replace("= 64", "= 0.1")}[msgpack]\npath = "{out}"\n')
    with daemon(path) as running:
        running.until(lambda: running.facts()["state"] == "sampling")
        for _ in range(3):  # the rate is set before a later one of these
            before = running.facts()["recorded"]
            running.until(lambda before=before: running.facts()["recorded"] > before)
    with open_trace(str(out)) as trace:
        said = {int(n) for batch in trace.batches("page_fault") if "sampled" in batch for n in batch["sampled"]}
        assert max(said) > 1
        assert trace.info.sampled > 1


def test_past_max_memory_the_session_goes_with_its_memory_and_faults_are_counted_until_the_next(settings, tmp_path):
    out = tmp_path / "node.wst"
    limits = HEALTH.replace("64GiB", "250MiB")
    path = settings(f'sources = ["faulting:grows=4"]\nexporters = ["msgpack"]\n{limits}[msgpack]\npath = "{out}"\n')
    with daemon(path) as running:
        running.until(lambda: running.ask("/health") == (503, "counting\n"))
        running.until(lambda: running.facts()["memory"]["resident"] < 96 << 20)
        running.until(lambda: running.facts()["sessions"] == 2)
        running.until(lambda: running.facts()["state"] == "tracing")
        facts = running.facts()
        assert [line for line in running.lines if "max_memory is reached; faults are counted until the next" in line]
    with open_trace(str(out)) as trace:
        assert 0 < trace.ledger.get("between_sessions") <= facts["lost"]["between_sessions"]


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (f'sources = ["faulting:fails=perf is refused here"]\n{HEALTH}', 122, "perf is refused here; mend it"),
        ("sources = 1", 125, "sources is 1"),
        (f'sources = ["faulting"]\nexporters = ["full"]\n{HEALTH}', 123, "exporter full failed: OSError"),
    ],
)
def test_what_cannot_go_on_ends_it_with_a_line_and_a_code(text, code, said, settings):
    running = Running(settings(text))
    assert running.process.wait(120) == code
    running.end()
    assert said in running.lines[-1]


def test_many_signals_at_once_do_not_block_it(settings):
    with daemon(settings(f'sources = ["faulting"]\n{HEALTH}')) as running:
        for _ in range(100):
            running.process.send_signal(signal.SIGTERM)


def test_each_capability_that_is_lacking_is_a_line(tmp_path):
    status = tmp_path / "status"
    for held, shown in {
        (1 << 41) - 1: [],
        0: ["CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_IPC_LOCK", "CAP_DAC_READ_SEARCH"],
        1 << 38 | 1 << 19 | 1 << 2: ["CAP_IPC_LOCK"],
        1 << 21 | 1 << 19 | 1 << 14 | 1 << 2: [],
    }.items():
        status.write_text(f"Name:\tx\nCapEff:\t{held:016x}\n")
        assert [line.split()[1] for line in missing(status)] == shown
    assert missing(tmp_path / "nowhere") == []
