"""The health endpoint: what it answers, and that no client can keep it from answering another."""

import contextlib
import json
import socket
import time
from pathlib import Path

import pytest

from wstrace.errors import OutputError
from wstrace_plugins.daemon.linux.health import Health, State


class Server:
    def __init__(self, where=("127.0.0.1", 0)):
        self.state = State(True, "tracing", {"state": "tracing", "name": "a\x1b\udcff"})
        self.health = Health(where, lambda: self.state)

    def connect(self):
        host, _, port = self.health.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def ask(self, request: bytes) -> bytes:
        with contextlib.closing(self.connect()) as one:
            one.sendall(request)
            return b"".join(iter(lambda: one.recv(65536), b""))


@pytest.fixture
def server():
    made = Server()
    yield made
    made.health.close()
    assert not made.health.thread.is_alive()


def test_the_state_in_a_word_and_whole(server):
    assert b"200 OK" in (found := server.ask(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert found.endswith(b"tracing\n")
    whole = server.ask(b"GET /?a=b HTTP/1.0\r\n\r\n")
    assert json.loads(whole.split(b"\r\n\r\n", 1)[1]) == {"state": "tracing", "name": "a\x1b\\xff"}
    server.state = State(False, "not tracing", {})
    assert b" 503 " in server.ask(b"GET /health HTTP/1.1\r\n\r\n").split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (b"POST / HTTP/1.1\r\n\r\n", b" 501 "),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", b" 404 "),
        (b"hello\r\n\r\n", b"Bad request"),
        (b"\x16\x03\x01\n\n", b"Bad request"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 2000, b" 431 "),
    ],
)
def test_what_is_no_request_gets_its_answer(server, request_, said):
    try:
        answer = server.ask(request_)
    except ConnectionResetError:
        assert len(request_) > 10_000, "only the long one is closed with a part of it unread"
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
    server.state = State(True, "tracing", {"names": ["x" * 1000] * 20_000})
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


def test_a_taken_address_is_one_line():
    first = Server()
    try:
        _, _, port = first.health.address.rpartition(":")
        with pytest.raises(OutputError, match=r"cannot answer at 127.0.0.1:\d+: Address already in use"):
            Server(("127.0.0.1", int(port)))
    finally:
        first.health.close()


def test_its_idle_thread_uses_no_cpu():
    server = Server()
    try:
        server.ask(b"GET / HTTP/1.1\r\n\r\n")
        clock = Path(f"/proc/self/task/{server.health.thread.native_id}/schedstat")
        if not clock.exists():
            pytest.skip("schedstat tells of wakeups")
        time.sleep(0.2)
        before = clock.read_text().split()[2]
        time.sleep(0.5)
        assert clock.read_text().split()[2] == before, "it woke up without a client"
    finally:
        server.health.close()
