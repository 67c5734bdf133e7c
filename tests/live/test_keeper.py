"""The process that keeps memory, where the system gives it less than it needs."""

import os
import sys

import pytest

from wstrace_plugins.working_set.backend import KeeperFailed

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: userfaultfd"),
    pytest.mark.skipif(os.geteuid() != 0 if hasattr(os, "geteuid") else True, reason="userfaultfd needs root"),
]

NO_THREAD = """
import _thread, runpy
def refused(*_):
    raise RuntimeError("can't start new thread")
_thread.start_new_thread = refused
runpy.run_path({path!r}, run_name="__main__")
"""


def test_a_keeper_without_room_for_a_thread_says_so_in_one_line(tmp_path, monkeypatch, capfd):
    from wstrace_plugins.working_set.linux import keeper, space

    (tmp_path / "keeper.py").write_text(NO_THREAD.format(path=keeper.__file__))
    monkeypatch.setattr(space, "__file__", str(tmp_path / "space.py"))
    one = space.Keeper()
    try:
        with pytest.raises(KeeperFailed, match="no room for a thread"):
            one.hold(os.getpid())
    finally:
        one.close()
    assert capfd.readouterr().err == ""
