"""The user of a process, and what it may do, on a stand-in machine."""

import pytest
from kit.fake_windows import FakeWindows

from wstrace.errors import Unavailable
from wstrace_plugins.os.windows import token


@pytest.fixture
def windows():
    machine = FakeWindows()
    machine.process(1)
    return machine


def test_elevation_is_read_from_our_own_token(windows):
    assert not token.elevated(windows)
    windows.processes[1].elevated = True
    assert token.elevated(windows)
    windows.processes[1].token_denied = True
    assert not token.elevated(windows)
    assert not windows._tokens


def test_a_privilege_that_is_held_is_not_yet_switched_on(windows):
    assert not token.has_debug_privilege(windows)
    token.set_debug_privilege(windows)
    assert token.has_debug_privilege(windows)
    token.set_debug_privilege(windows, on=False)
    assert not token.has_debug_privilege(windows)
    assert not windows._tokens


def test_a_privilege_that_is_not_held_says_what_to_do(windows):
    windows.held = set()
    with pytest.raises(Unavailable, match="could not be switched on") as refused:
        token.set_debug_privilege(windows)
    assert "elevated" in refused.value.remedy
