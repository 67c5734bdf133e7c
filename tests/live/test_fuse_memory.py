"""A program whose mapped files never answer delays itself, and nobody who traces it."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit.command_line import answer
from kit.forged import PLACES, offsets

HERE = Path(__file__).parent
USER = 33
pytestmark = [
    pytest.mark.usefixtures("full_level"),
    pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="mounts a FUSE file system"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc (tests/install-peers)"),
]


@pytest.fixture
def waiting(tmp_path):
    """The pid of fuse_python.c, as another user's process."""
    slow, program = tmp_path / "slow", tmp_path / "python3.13"
    slow.touch()
    (tmp_path / "offsets.h").write_text(offsets(PLACES))
    subprocess.run(["gcc", "-O1", "-I", tmp_path, "-o", program, HERE / "fuse_python.c"], check=True)
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    words = [sys.executable, HERE / "fuse_hang.py", slow, str(USER), program, slow]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        pid = int(server.stdout.readline() or 0)
        try:
            if not pid:
                pytest.skip("a FUSE file system cannot be mounted here")
            yield pid
        finally:
            server.kill()  # the kernel then ends every wait for it
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, 9)
            subprocess.run(["umount", "-l", slow], check=False)


@pytest.mark.parametrize(
    "words",
    [
        ("attach", "PID", "--duration", "2s", "-q", "-o", "FILE"),
        ("attach", "PID", "--duration", "2s", "-q", "-s", "page_faults:stacks=native", "-o", "FILE"),
        ("report", "PID", "--duration", "2s", "--by", "stack"),
        ("snapshot", "PID"),
        ("ps", "PID"),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_file_that_never_answers_stops_no_command(waiting, words, tmp_path):
    named = {"PID": str(waiting), "FILE": str(tmp_path / "x.wst")}
    answer(*(named.get(word, word) for word in words))
