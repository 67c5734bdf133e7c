"""What a command costs: the one measure of these scripts."""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path


def cost(words: Sequence[str | Path], folder: Path | None = None) -> tuple[float, float, float]:
    """(CPU seconds, wall seconds, peak MB) of a command in that folder and of all that it started and waited for."""
    began, quiet = time.perf_counter(), subprocess.DEVNULL
    process = subprocess.Popen(words, cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - began, usage.ru_maxrss * 1024 / 1e6
