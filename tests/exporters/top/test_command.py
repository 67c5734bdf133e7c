"""`wstrace top`: what it refuses, in one line with its exit code, and a session on a real terminal."""

import os
import re
import subprocess
import sys
import time

import pytest
from kit.command_line import WSTRACE, wstrace

from wstrace.errors import UsageError
from wstrace_exporters.live_screen import command

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pseudo terminals of Linux")


def test_no_process_is_given():
    done = wstrace("top")
    assert done.returncode == 125
    assert done.stderr == "wstrace: no process given; write: wstrace top PID, or --name GLOB\n"


def test_it_needs_a_terminal():
    done = wstrace("top", os.getpid())
    assert done.returncode == 125
    assert "needs a terminal" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        ("import no_such_package", "is not installed; pip install 'wstrace[top]'"),
        ("raise ImportError('libx.so: no\\nroom')", "is installed, and cannot be loaded: libx.so: no room"),
    ],
)
def test_without_textual_one_line_says_what_to_do(content, reported, tmp_path):
    (tmp_path / "textual.py").write_text(content)
    done = wstrace("top", 1, environment={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 122
    assert done.stderr == f"wstrace: wstrace top needs the package textual, which {reported}\n"


@LINUX
def test_it_refuses_the_terminal_of_the_process_that_it_shows():
    import pty

    ours, theirs = pty.openpty()
    script = (
        "import fcntl, os, termios, time\nos.setsid()\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=theirs, stdout=subprocess.PIPE) as target:
        try:
            target.stdout.readline()
            with pytest.raises(UsageError, match=rf"process {target.pid} has this terminal.*another terminal"):
                command.refuse_shared_terminal([target.pid], os.ttyname(theirs))
            command.refuse_shared_terminal([target.pid], "/dev/null")
        finally:
            target.kill()
            os.close(ours)
            os.close(theirs)


@pytest.mark.parametrize("pid", [0, -5, 1 << 62, 1 << 70])
def test_a_number_that_no_process_has_is_left_to_attach(pid):
    command.refuse_shared_terminal([pid], "/dev/pts/1")


@LINUX
def test_on_a_terminal_it_shows_a_process_that_grows_and_q_ends_it():
    pytest.importorskip("textual", reason="pip install 'wstrace[top]'")
    import fcntl
    import pty
    import select
    import struct
    import termios

    grows = "import time\nheld = []\nwhile True:\n    held.append(bytearray(1 << 20))\n    time.sleep(0.05)"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    seen, until = b"", time.monotonic() + 60
    with subprocess.Popen([sys.executable, "-c", grows]) as target:
        shown = subprocess.Popen(
            [*WSTRACE, "top", str(target.pid)], stdin=theirs, stdout=theirs,
            stderr=theirs, start_new_session=True, env={**os.environ, "NO_COLOR": "1", "TERM": "xterm"},
        )  # fmt: skip
        try:
            while b"total of" not in seen and time.monotonic() < until and shown.poll() is None:
                if select.select([ours], [], [], 0.2)[0]:
                    seen += os.read(ours, 65536)
            os.write(ours, b"q")
            while shown.poll() is None and time.monotonic() < until:
                if select.select([ours], [], [], 0.2)[0]:
                    seen += os.read(ours, 65536)
        finally:
            shown.kill()
            shown.wait()
            assert target.poll() is None, "the process goes on"
            target.kill()
            os.close(ours)
            os.close(theirs)
    assert shown.returncode == 0, seen[-2000:]
    assert b"total of" in seen
    assert b"RESIDENT" in seen
    assert not re.search(rb"\x1b\[(\d+;)*(3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]", seen), "no colour"
