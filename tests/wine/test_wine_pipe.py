"""The agent's named pipe: whose it is, whom it lets in, what a client gives away of itself."""

import ctypes
import os
import threading
from contextlib import closing, suppress

import pytest

import wstrace
from wstrace.errors import Unavailable
from wstrace_plugins.os.windows import api as winapi
from wstrace_plugins.os.windows import token
from wstrace_plugins.write_watch.windows import agent, pipe

PATH = f"{pipe.PREFIX}wstrace-test-{os.getpid()}"


@pytest.fixture
def echo():
    """A server that sends back what each client sends, up to 1 MiB, until it sends nothing."""
    server, going = pipe.Server(PATH), True

    def serve():
        while going:
            with suppress(OSError):
                peer = server.accept()
                while message := peer.receive(1 << 20):
                    peer.send(message)
            server.release()

    main = threading.Thread(target=serve)
    main.start()
    yield
    going = False
    with closing(pipe.connect(PATH)) as last:
        last.send(b"")
    main.join()
    server.close()


def rights(handle):
    """The discretionary rights of an object, as a string."""
    advapi32, descriptor, text = ctypes.WinDLL("advapi32"), ctypes.c_void_p(), ctypes.c_wchar_p()
    assert not advapi32.GetSecurityInfo(ctypes.c_void_p(handle), 6, 4, None, None, None, None, ctypes.byref(descriptor))
    assert advapi32.ConvertSecurityDescriptorToStringSecurityDescriptorW(descriptor, 1, 4, ctypes.byref(text), None)
    return text.value


def test_its_rights_name_our_user_and_nobody_else():
    server = pipe.Server(PATH)
    shown = rights(server._pipe.handle)
    server.close()
    ours = token.sid_text(token.user(winapi, winapi.GetCurrentProcess()))
    assert shown.startswith("D:P(A;;")
    assert shown.endswith(f";;;{ours})")
    assert shown.count("(") == 1


@pytest.mark.parametrize("path", [r"\\server\pipe\x", r"C:\file", r"\\.\pipe\a\b", r"\\.\PhysicalDrive0", ""])
def test_what_is_no_pipe_of_this_machine_is_never_opened(path, monkeypatch):
    monkeypatch.setattr(pipe, "_CreateFileW", lambda *args: pytest.fail("opened"))
    with pytest.raises(OSError, match="is no"):
        pipe.connect(path)
    with pytest.raises(OSError, match="is no"):
        pipe.Server(path)


def test_each_side_learns_which_process_the_other_one_is(echo):
    with closing(pipe.connect(PATH)) as peer:
        assert peer.server() == os.getpid()
        peer.send(b"")


@pytest.mark.parametrize("size", [1, 65_531, 65_532, 65_536, 300_001])
def test_messages_of_every_size_come_whole(echo, size):
    message = os.urandom(size)
    with closing(pipe.connect(PATH)) as peer:
        for _ in range(3):
            peer.send(message)
            assert peer.receive(size, 5.0) == message
        peer.send(b"")


def test_a_message_that_is_too_long_and_one_that_does_not_come(echo):
    with closing(pipe.connect(PATH)) as peer:
        with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
            peer.receive(10, 0.1)
        peer.send(b"x" * 11)
        with pytest.raises(OSError, match="a message of 11 bytes where 10 may come"):
            peer.receive(10)


def test_an_agent_that_is_closed_leaves_its_name_and_no_thread():
    before = threading.active_count()
    for _ in range(3):
        agent = wstrace.agent()
        agent.close()
        assert threading.active_count() == before
        with pytest.raises(FileNotFoundError):
            pipe.connect(agent.path, 0)


def test_a_pipe_of_another_process_is_not_believed(target):
    process = target("fault_on_request.py")
    process.stdout.readline()
    ours = wstrace.agent()
    with pytest.raises(Unavailable, match=f"is process {os.getpid()}'s, not process {process.pid}'s"):
        agent.connect(process.pid, ours.path)
    ours.close()


def test_an_agent_that_does_not_answer_is_told(monkeypatch, target):
    monkeypatch.setattr(pipe, "SECONDS", 0.2)
    server = pipe.Server(agent.default_path(os.getpid()))
    thread = threading.Thread(target=server.accept)
    thread.start()
    with pytest.raises(Unavailable, match=r"agent gives no answer within 0\.2 s"):
        agent.connect(os.getpid())
    thread.join()
    server.close()
