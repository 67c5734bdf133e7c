"""The examples of `wstrace prefetch`: systemd accepts the unit, and the entry point becomes its command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux")

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "prefetch"


def test_systemd_accepts_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze (tests/install-peers)")
    unit = tmp_path / "app-prefetch.service"
    shutil.copy(FOLDER / unit.name, unit)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, []), done.stderr


def test_the_options_of_the_unit_are_those_of_the_command(tmp_path):
    (line,) = [
        line for line in (FOLDER / "app-prefetch.service").read_text().splitlines() if line.startswith("ExecStart=")
    ]
    words = line.partition("wstrace ")[2].split()
    (tmp_path / "l").write_text("wstrace-prefetch 1\n")
    words[words.index("--apply") + 1] = str(tmp_path / "l")
    done = subprocess.run([sys.executable, "-m", "wstrace", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "0 B of 0 files in 0 ranges read ahead" in done.stderr


@pytest.mark.parametrize("installed", [True, False])
def test_the_entry_point_becomes_its_command(tmp_path, installed):
    folder = tmp_path / "bin"
    folder.mkdir()
    if installed:
        (folder / "wstrace").write_text(f'#!/bin/sh\nexec {sys.executable} -m wstrace "$@"\n')
        (folder / "wstrace").chmod(0o755)
    (tmp_path / "l").write_text("wstrace-prefetch 1\n/nowhere/there 1 1 - 0 1\n")
    environment = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin", "PREFETCH_LIST": str(tmp_path / "l")}
    if not installed and shutil.which("wstrace", path="/usr/bin:/bin"):
        pytest.skip("wstrace is installed in the system's own folders")
    words, pipe = ["sh", "-c", "echo $$ $1; exit 6", "-", "it"], subprocess.PIPE
    process = subprocess.Popen([FOLDER / "entrypoint.sh", *words], env=environment, stdout=pipe, stderr=pipe, text=True)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.split(), err) == (6, [str(process.pid), "it"], "")
