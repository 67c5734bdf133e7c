"""Ctrl-C while wstrace is being imported: the process ends by the signal, without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
START = {
    "module": [sys.executable, "-m", "wstrace"],
    "script": [sys.executable, "-c", "from wstrace.__main__ import main; main()"],
}
SLOW = "import os, time\nos.write(1, b'importing')\ntime.sleep(60)\n"


def interrupted(words: list[str], folder: Path, **options: object) -> subprocess.Popen[bytes]:
    """The process, which got SIGINT while it imported click."""
    (folder / "click.py").write_text(SLOW)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    process = subprocess.Popen(
        [*words, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **options
    )
    assert process.stdout is not None
    assert process.stdout.read(len("importing")) == b"importing"
    process.send_signal(signal.SIGINT)
    return process


@pytest.mark.parametrize("how", START)
def test_an_import_is_interrupted_in_silence(how, tmp_path):
    process = interrupted(START[how], tmp_path)
    assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == -signal.SIGINT


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    process = interrupted(START["module"], tmp_path, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.kill()
    process.communicate()
