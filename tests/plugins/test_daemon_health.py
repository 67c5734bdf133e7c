"""The health endpoint: what it answers, and that no client can keep it from answering another."""

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time

import pytest

from wstrace.errors import OutputError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux")


class Server:
    def __init__(self):
        from wstrace_plugins.daemon.linux.health import State, listening, serve

        self.make = State
        self.state = State(True, "tracing", {"state": "tracing", "name": "a\x1b\udcff"})
        listener = listening(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(serve(listener, lambda: self.state))
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
    made.server.close()
    made.loop.run_until_complete(made.server.wait_closed())
    made.loop.close()


def test_the_state_in_a_word_and_whole(server):
    assert b"200 OK" in (found := server.ask(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert found.endswith(b"tracing\n")
    whole = server.ask(b"GET /?a=b HTTP/1.0\r\n\r\n")
    assert json.loads(whole.split(b"\r\n\r\n", 1)[1]) == {"state": "tracing", "name": "a\x1b\\xff"}
    server.state = server.make(False, "not tracing", {})
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
    server.state = server.make(True, "tracing", {"names": ["x" * 1000] * 20_000})
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


def test_a_taken_address_is_one_line(server):
    from wstrace_plugins.daemon.linux.health import listening

    with pytest.raises(OutputError, match=r"cannot answer at 127.0.0.1:\d+: Address already in use"):
        listening(server.address)
