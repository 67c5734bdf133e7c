"""The health endpoint: what it answers, and that no client can keep it from answering another."""

import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
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
        if self.health.address.startswith("unix:"):
            one = socket.socket(socket.AF_UNIX)
            one.connect(self.health.address.removeprefix("unix:"))  # with a time limit it does not wait for its turn
            one.settimeout(30)
            return one
        host, _, port = self.health.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def ask(self, request: bytes) -> bytes:
        with contextlib.closing(self.connect()) as one:
            one.sendall(request)
            return b"".join(iter(lambda: one.recv(65536), b""))


@pytest.fixture(params=["tcp", "unix"])
def server(request, tmp_path):
    made = Server(("127.0.0.1", 0) if request.param == "tcp" else str(tmp_path / "health.sock"))
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


def test_a_unix_socket_is_the_owner_s_and_takes_the_place_of_a_dead_one_alone(tmp_path):
    path = tmp_path / "health.sock"
    first = Server(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(OutputError, match="Address already in use"):
        Server(str(path))
    first.health.close()
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    second = Server(str(path))
    assert b"200 OK" in second.ask(b"GET / HTTP/1.1\r\n\r\n")
    second.health.close()
    path.write_text("a file of somebody")
    with pytest.raises(OutputError):
        Server(str(path))
    assert path.read_text() == "a file of somebody"


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


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_who_exchanges_the_socket_for_a_link_changes_no_mode(tmp_path):
    victim, folder, race = tmp_path / "victim", tmp_path / "folder", tmp_path / "race"
    victim.touch(0o644)
    folder.mkdir()
    subprocess.run(["gcc", "-O1", "-o", race, Path(__file__).with_name("health_race.c")], check=True)
    with subprocess.Popen([race, folder, victim, "2"]) as racing:
        while racing.poll() is None:
            with contextlib.suppress(OutputError):
                Health(str(folder / "s.sock"), lambda: State(True, "", {})).close()
            for name in ("s.sock", "y"):
                left = folder / name
                with contextlib.suppress(OSError):
                    if stat.S_ISSOCK(left.lstat().st_mode):
                        left.unlink()
            assert stat.S_IMODE(victim.stat().st_mode) == 0o644
    assert racing.returncode == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_root_makes_no_socket_behind_a_link_of_another_user(tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    (theirs / "link").symlink_to(ours)
    os.chown(theirs, 65534, 65534)
    with pytest.raises(OutputError, match="is a symbolic link that uid 65534 may change"):
        Health(str(theirs / "link" / "s.sock"), lambda: State(True, "", {}))
    assert not list(ours.iterdir())
    Health(str(theirs / "s.sock"), lambda: State(True, "", {})).close()
    assert not (theirs / "s.sock").exists()
