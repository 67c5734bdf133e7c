"""The daemon's life with a scripted source: limits, reload, failures, and its end."""

from __future__ import annotations

import socket
import sys
import threading

import pytest
from daemon_scripted import Running, daemon, plugins

from wstrace.errors import OutputError, TargetExited, Unavailable, UsageError
from wstrace_exporters.msgpack.read.trace import open_trace
from wstrace_plugins.daemon.command import missing
from wstrace_plugins.daemon.daemon import NodeDaemon

#: The daemon runs within pytest, which other tests have made as large as it is.
HEALTH = '[daemon]\nhealth = "127.0.0.1:0"\nmax_cpu = 64\nmax_memory = "64GiB"\n'


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "wstrace.toml"

    def write(text: str):
        path.write_text(text)
        return path

    return write


def test_it_traces_tells_its_state_and_ends(settings, tmp_path):
    out = tmp_path / "node.wst"
    path = settings(f'sources = ["faulting"]\nexporters = ["msgpack"]\n{HEALTH}[msgpack]\npath = "{out}"\n')
    with daemon(path) as running:
        running.until(lambda: running.facts()["recorded"] > 50)
        facts = running.facts()
        assert running.ask("/health") == (200, "tracing\n")
        assert (facts["state"], facts["lost"], facts["sampled"]) == ("tracing", {}, 1)
        assert facts["memory"]["resident"] >= 0
        assert facts["exporters"] == {"msgpack": ""}
    assert running.error is None
    with open_trace(str(out)) as trace:
        assert sum(map(len, trace.batches("page_fault"))) >= 50
        assert not trace.info.incomplete


def test_another_daemon_goes_on_in_the_same_file(settings, tmp_path):
    out = tmp_path / "node.wst"
    path = settings(f'sources = ["faulting"]\nexporters = ["msgpack"]\n{HEALTH}[msgpack]\npath = "{out}"\n')
    counts = []
    for _ in range(2):
        with daemon(path) as running:
            running.until(lambda running=running: running.facts()["recorded"] > 20)
        assert running.error is None
        with open_trace(str(out)) as trace:
            counts.append(sum(map(len, trace.batches("page_fault"))))
    assert counts[1] >= counts[0] + 20


def test_past_max_cpu_it_samples_and_each_row_says_for_how_many_it_stands(settings, tmp_path):
    out = tmp_path / "node.wst"
    source = 'sources = ["faulting:faults=10000,spins=0.02"]'
    path = settings(f'{source}\nexporters = ["msgpack"]\n{HEALTH.replace("= 64", "= 0.05")}[msgpack]\npath = "{out}"\n')
    with daemon(path) as running:
        running.until(lambda: running.facts()["state"] == "sampling")
        before = running.facts()["recorded"]
        running.until(lambda: running.facts()["recorded"] > before + 100)
    with open_trace(str(out)) as trace:
        said = {int(n) for batch in trace.batches("page_fault") if "sampled" in batch for n in batch["sampled"]}
        assert max(said) > 1
        assert trace.info.sampled > 1


def test_over_max_memory_it_drops_and_counts(settings):
    path = settings(f'sources = ["faulting"]\n{HEALTH}')
    with daemon(path) as running:
        running.until(lambda: running.facts()["recorded"] > 0)
        limits = running.node.state.limits
        assert limits is not None
        limits.max_memory = 1
        running.until(lambda: running.facts()["lost"].get("over_memory:page_fault", 0) > 0)
        assert running.facts()["state"] == "over max_memory"
        limits.max_memory = 1 << 40
        running.until(lambda: running.facts()["state"] == "tracing")


def test_a_reload_takes_new_settings(settings):
    path = settings(f'sources = ["faulting"]\n{HEALTH}')
    with daemon(path) as running:
        running.until(lambda: running.facts()["recorded"] > 0)
        settings(f'sources = ["faulting"]\n{HEALTH.replace("64", "32")}')
        running.node.reload()
        running.until(lambda: running.facts()["sessions"] == 2)
        facts = running.facts()
        assert (facts["cpu"]["max"], facts["reload_refused"]) == (32, "")
        before = facts["recorded"]
        running.until(lambda: running.facts()["recorded"] > before)
    assert running.error is None


@pytest.mark.parametrize(
    "bad", ["[daemon", "[daemon]\nmax_cpus = 1", 'sources = ["nothing"]', 'exporters = ["msgpack"]']
)
def test_a_reload_of_a_bad_file_is_refused_with_a_line_and_nothing_stops(bad, settings):
    path = settings(f'sources = ["faulting"]\n{HEALTH}')
    with daemon(path) as running:
        running.until(lambda: running.facts()["recorded"] > 0)
        settings(bad)
        running.node.reload()
        running.until(lambda: bool(running.facts()["reload_refused"]))
        facts = running.facts()
        assert (facts["sessions"], facts["state"]) == (1, "tracing")
        assert [line for line in running.lines if line.startswith("reload refused, the old settings go on: ")]
        before = facts["recorded"]
        running.until(lambda: running.facts()["recorded"] > before)


def test_a_reload_whose_session_does_not_begin_brings_the_old_one_back(settings, tmp_path):
    path = settings(f'sources = ["faulting"]\n{HEALTH}')
    with daemon(path) as running:
        running.until(lambda: running.facts()["recorded"] > 0)
        settings(f'sources = ["faulting:fails=perf is refused here"]\n{HEALTH}')
        running.node.reload()
        running.until(lambda: running.facts()["sessions"] == 2)
        facts = running.facts()
        assert facts["reload_refused"] == "perf is refused here; mend it"
        before = facts["recorded"]
        running.until(lambda: running.facts()["recorded"] > before)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            settings(f'sources = ["faulting"]\n[daemon]\nhealth = "127.0.0.1:{taken.getsockname()[1]}"\n')
            running.node.reload()
            running.until(lambda: "cannot answer" in running.facts()["reload_refused"])
        assert running.facts()["sessions"] == 2


def test_a_first_session_that_does_not_begin_ends_the_daemon(settings):
    running = Running(str(settings(f'sources = ["faulting:fails=perf is refused here"]\n{HEALTH}')))
    running.begin()
    running.end()
    assert isinstance(running.error, Unavailable)
    assert str(running.error) == "perf is refused here; mend it"
    running = Running(str(settings("sources = 1")))
    running.begin()
    running.end()
    assert isinstance(running.error, UsageError)


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_cgroups_that_are_not_there_are_told_once_each(settings, monkeypatch):
    running = Running(str(settings(f'sources = ["faulting"]\n{HEALTH}')))

    def group(kind, name=""):
        raise TargetExited(f"no {kind} {name}", "")

    monkeypatch.setattr(running.node._plugins.platform, "group", group)
    with pytest.raises(TargetExited, match="no cgroup /b"):
        running.node._groups(["/a", "/b"])
    assert running.lines == ["no cgroup /a"]


def test_a_failing_exporter_ends_it_with_a_line(settings, monkeypatch, tmp_path):
    from wstrace_exporters.msgpack.write.exporter import MsgpackExporter

    out = tmp_path / "node.wst"

    def full(self, batch):
        raise OSError(28, "No space left on device")

    path = settings(f'sources = ["faulting"]\nexporters = ["msgpack"]\n{HEALTH}[msgpack]\npath = "{out}"\n')
    with daemon(path) as running:
        running.until(lambda: running.facts()["recorded"] > 0)
        monkeypatch.setattr(MsgpackExporter, "export", full)
        running.until(lambda: not running.thread.is_alive())
    assert isinstance(running.error, OutputError)
    assert "exporter msgpack failed" in str(running.error)
    assert "No space left" in str(running.error)


def test_a_signal_in_the_middle_of_its_wait_does_not_block_it(settings):
    """A handler runs between any two instructions of the main thread, also of what waits: there it may hold a lock."""
    node = NodeDaemon(str(settings(f'sources = ["faulting"]\n{HEALTH}')), plugins(), lambda _: None)

    def signalled(frame, event, argument):
        if event == "line":
            node.end()
        return signalled

    def traced(frame, event, argument):
        waits = frame.f_back is not None and frame.f_back.f_code is NodeDaemon.run.__code__
        return signalled if waits and frame.f_code.co_name in ("wait", "get", "clear") else None

    def run():
        sys.settrace(traced)
        node.run(ready.set)

    ready = threading.Event()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(60)
    threading.Timer(0.1, node.end).start()
    thread.join(20)
    assert not thread.is_alive()


def test_each_capability_that_is_lacking_is_a_line(tmp_path):
    status = tmp_path / "status"
    for held, told in {
        (1 << 41) - 1: [],
        0: ["CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_IPC_LOCK", "CAP_DAC_READ_SEARCH"],
        1 << 38 | 1 << 19 | 1 << 2: ["CAP_IPC_LOCK"],
        1 << 21 | 1 << 19 | 1 << 14 | 1 << 2: [],
    }.items():
        status.write_text(f"Name:\tx\nCapEff:\t{held:016x}\n")
        assert [line.split()[1] for line in missing(status)] == told
    assert missing(tmp_path / "nowhere") == []
