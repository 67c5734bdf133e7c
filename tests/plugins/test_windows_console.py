"""The end of a console, with a stand-in that calls the handlers on a thread of its own, as Windows does."""

import ctypes
import threading

import pytest
from fake_windows import FakeWindows

from wstrace.errors import Unavailable
from wstrace_plugins.os.windows import backend
from wstrace_plugins.os.windows.backend import CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT, held_close


def close(windows, event, answers):
    """Calls the latest handler as the system does."""
    routine = ctypes.cast(windows.handlers[-1], backend._HandlerRoutine)
    thread = threading.Thread(target=lambda: answers.append(routine(event)))
    thread.start()
    return thread


@pytest.mark.parametrize("event", [CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT])
def test_a_close_asks_and_is_held_until_all_is_done(event):
    windows, asked, answers = FakeWindows(), threading.Event(), []
    with held_close(windows, asked.set):
        thread = close(windows, event, answers)
        assert asked.wait(5)
        thread.join(0.05)
        assert thread.is_alive()
        assert answers == []
    thread.join(5)
    assert answers == [1]  # handled: no other handler is asked
    assert windows.handlers == []


def test_a_close_is_held_for_some_seconds_only(monkeypatch):
    monkeypatch.setattr(backend, "HELD_SECONDS", 0.01)
    windows, answers = FakeWindows(), []
    with held_close(windows, lambda: None):
        close(windows, CTRL_CLOSE_EVENT, answers).join(5)
        assert answers == [1]


@pytest.mark.parametrize("event", [0, 1])
def test_ctrl_c_and_ctrl_break_are_left_to_the_next_handler(event):
    windows, asked, answers = FakeWindows(), [], []
    with held_close(windows, lambda: asked.append(1)):
        close(windows, event, answers).join(5)
    assert (asked, answers) == ([], [0])


def test_a_system_that_takes_no_handler_is_told():
    windows = FakeWindows()
    windows.SetConsoleCtrlHandler = lambda address, add: windows._fail(87)
    with pytest.raises(Unavailable, match="SetConsoleCtrlHandler failed with 87"), held_close(windows, lambda: None):
        pass
