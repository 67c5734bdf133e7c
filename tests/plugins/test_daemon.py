"""The daemon's life with a scripted source: limits, failures, its end, and what it says of its health."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
import threading
import time

import pytest
from kit.daemon_scripted import Running, daemon

from wstrace.errors import OutputError
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


class Server:
    def __init__(self):
        from wstrace_plugins.daemon.linux.health import State, listening, serve

        self.make = State
        self.state = State(True, {"state": "tracing", "name": "a\x1b\udcff"})
        self.listener = listening(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.create_task(serve(self.listener, lambda: self.state))
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def connect(self):
        return socket.create_connection(self.address, timeout=30)

    def ask(self, request: bytes) -> bytes:
        with contextlib.closing(self.connect()) as one:
            one.sendall(request)
            return b"".join(iter(lambda: one.recv(65536), b""))


@pytest.fixture
def server():
    made = Server()
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)
    made.thread.join(10)
    made.server.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        made.loop.run_until_complete(made.server)
    made.listener.close()
    made.loop.close()


def test_the_state_in_a_word_and_whole(server):
    assert b"200 OK" in (found := server.ask(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert found.endswith(b"tracing\n")
    whole = server.ask(b"GET /?a=b HTTP/1.0\r\n\r\n")
    assert json.loads(whole.split(b"\r\n\r\n", 1)[1]) == {"state": "tracing", "name": "a\x1b\\xff"}
    server.state = server.make(False, {"state": "not tracing"})
    assert b" 503 " in server.ask(b"GET /health HTTP/1.1\r\n\r\n").split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (b"POST / HTTP/1.1\r\n\r\n", b" 404 "),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", b" 404 "),
        (b"hello\r\n\r\n", b" 404 "),
        (b"\x16\x03\x01\n\n", b" 404 "),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 2000 + b"\r\n", b"200 OK"),
        (b"GET /" + b"a" * 300_000, b""),
    ],
)
def test_what_is_no_request_gets_its_answer(server, request_, said):
    try:
        answer = server.ask(request_)
    except (ConnectionResetError, BrokenPipeError):
        assert not said, "only the long one is closed with a part of it unread"
    else:
        assert said in answer
    assert b"200 OK" in server.ask(b"GET / HTTP/1.1\r\n\r\n")


def test_slow_clients_keep_no_other_from_its_answer(server):
    silent = [server.connect() for _ in range(64)]
    for one in silent:
        with contextlib.suppress(OSError):
            one.send(b"GET / ")
    assert b"200 OK" in server.ask(b"GET / HTTP/1.1\r\n\r\n")
    for one in silent:  # each is closed: at once beyond the 16 newest, these after 3 s
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(1) == b""
        one.close()


def test_a_client_that_does_not_read_is_dropped(server):
    server.state = server.make(True, {"state": "tracing", "names": ["x" * 1000] * 20_000})
    one = server.connect()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert b"200 OK" in server.ask(b"GET /health HTTP/1.1\r\n\r\n")
    time.sleep(4)
    read = 0
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(1 << 20):
            read += len(part)
    assert read < 20_000_000
    one.close()


def test_whoever_connects_all_the_time_does_not_take_the_daemons_cpu(server):
    answered, until = 0, time.monotonic() + 2
    while time.monotonic() < until:
        answered += b"200 OK" in server.ask(b"GET / HTTP/1.1\r\n\r\n")
    assert 0 < answered <= 2 * 60, "50 a second"


def test_a_taken_address_is_one_line(server):
    from wstrace_plugins.daemon.linux.health import listening

    with pytest.raises(OutputError, match=r"cannot answer at 127.0.0.1:\d+: Address already in use"):
        listening(server.address)
