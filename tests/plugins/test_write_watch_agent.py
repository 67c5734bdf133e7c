"""The agent that lets another process be watched: whom it answers, and whom a tracer believes."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import wstrace
from wstrace.errors import TargetExited, Unavailable
from wstrace_plugins.write_watch.linux import agent as agent_linux

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: userfaultfd"),
    pytest.mark.usefixtures("watchable"),
]


def test_the_socket_is_the_users_alone(tmp_path):
    path = tmp_path / "a.sock"
    agent = wstrace.agent(str(path))
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    agent.close()
    agent.close()
    assert not path.exists()
    usual = wstrace.agent()
    folder = Path(usual.path).parent
    assert (folder.stat().st_mode & 0o077, folder.stat().st_uid) == (0, os.geteuid())
    usual.close()


SERVE = """
import ctypes, os, time
import wstrace_plugins.write_watch.linux.agent as agent_linux, wstrace_plugins.write_watch.linux.backend
os.setgid(65534), os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: else /proc/self is root's after setuid
agent_linux.Agent("PATH")
os.chmod("PATH", 0o777)
print(flush=True)
time.sleep(60)
"""
ASK = """
import os, socket
os.setgid(USER), os.setuid(USER)
with socket.socket(socket.AF_UNIX) as peer:
    peer.settimeout(10)
    peer.connect("PATH")
    try:
        peer.sendall(b"wstrace write_watch 1\\n")
        print(peer.recv(100))
    except ConnectionError:
        print(b"")
"""


def test_another_user_is_not_answered():
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two other users")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path = folder + "/x.sock"
        with subprocess.Popen([sys.executable, "-c", SERVE.replace("PATH", path)], stdout=subprocess.PIPE) as target:
            try:
                target.stdout.readline()
                for user, answer in (("65533", "b''"), ("65534", "b'ok'")):  # the second shows that the test can fail
                    code = ASK.replace("PATH", path).replace("USER", user)
                    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
                    assert done.stdout.strip() == answer, done.stderr
            finally:
                target.kill()


def test_a_socket_that_another_process_holds_is_not_believed(tmp_path):
    path = tmp_path / "fake.sock"
    with socket.socket(socket.AF_UNIX) as listener, subprocess.Popen(["sleep", "60"]) as target:
        listener.bind(str(path))
        listener.listen()
        try:
            with pytest.raises(Unavailable, match=r"is not process \d+'s"):
                agent_linux.connect(target.pid, str(path))
        finally:
            target.kill()


def test_a_peer_that_says_nothing_or_nonsense_costs_itself_only(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_linux, "_SECONDS", 0.2)
    path = str(tmp_path / "a.sock")
    agent = agent_linux.Agent(path)
    for words in (b"", b"nonsense", b"wstrace write_watch 2\n"):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(5)
            peer.connect(path)
            if words:
                peer.sendall(words)
            with contextlib.suppress(ConnectionError):
                assert peer.recv(10) == b""
    for opened in agent_linux.connect(os.getpid(), path):
        opened.close()
    agent.close()


def test_the_socket_of_a_dead_process_is_taken_over_a_living_ones_not(tmp_path):
    path = str(tmp_path / "a.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    first = agent_linux.Agent(path)
    with pytest.raises(Unavailable, match="cannot listen"):
        agent_linux.Agent(path)
    first.close()
    (tmp_path / "b.sock").write_text("a file of the user's")
    with pytest.raises(Unavailable, match="cannot listen"):
        agent_linux.Agent(str(tmp_path / "b.sock"))
    assert (tmp_path / "b.sock").read_text()


def test_a_program_that_ends_without_closing_its_agent_leaves_no_socket(tmp_path):
    path = tmp_path / "a.sock"
    code = f"import wstrace; wstrace.agent({str(path)!r}); import os; print(os.path.exists({str(path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert not path.exists()


def test_a_folder_that_others_can_enter_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_linux.tempfile, "gettempdir", lambda: str(tmp_path))
    uid = os.geteuid()
    if Path(f"/run/user/{uid}").is_dir():
        pytest.skip("this user has a runtime folder, so the other is not used")
    (tmp_path / f"wstrace-{uid}").mkdir(mode=0o755)
    with pytest.raises(Unavailable, match="only this user"):
        agent_linux.default_path(os.getpid(), uid, make=True)


def test_nobody_is_there():
    with pytest.raises(TargetExited):
        agent_linux.connect(4_000_000)


# -- what goes wrong at the other end ------------------------------------------------------------------------------


HOSTILE = """
import os, socket
listener = socket.socket(socket.AF_UNIX)
listener.bind({path!r})
listener.listen()
end, _ = os.pipe()
passwd = os.open("/etc/passwd", os.O_RDONLY)
other = os.open("/proc/{other}/pagemap", os.O_RDONLY)
print(flush=True)
peer, _ = listener.accept()
peer.recv(64)
socket.send_fds(peer, [b"ok"], {handed})
peer.recv(1)
"""


@pytest.mark.parametrize("handed", ["[end, end]", "[passwd]", "[end] * 200", "[other]", "[end, end, end]", "[]"])
def test_descriptors_that_a_hostile_target_hands_over_are_not_believed(handed, tmp_path):
    path = str(tmp_path / "a.sock")
    before = len(list(Path("/proc/self/fd").iterdir()))
    code = HOSTILE.format(path=path, handed=handed, other=os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as target:
        target.stdout.readline()
        with pytest.raises(Unavailable, match="agent"):
            agent_linux.connect(target.pid, path)
        target.stdout.close()
        target.kill()
    assert len(list(Path("/proc/self/fd").iterdir())) == before, "left open"
