"""Go's own tool for profiles, which it builds when it is first used."""

import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest


@functools.cache
def program() -> str:
    """The path of the tool; skips the test where there is no Go."""
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        pytest.skip("Go is not installed")
    shown = subprocess.run([go, "tool", "-n", "pprof"], capture_output=True, text=True, timeout=300)
    if shown.returncode:
        pytest.skip(f"Go has no pprof: {shown.stderr.strip()}")
    return shown.stdout.strip()


def pprof(*words: object) -> str:
    """What the tool says to standard output."""
    done = subprocess.run([program(), *map(str, words)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def totals(path: Path, *words: str) -> dict[str, int]:
    """Of each type of values their sum, as Go's tool reads them."""
    found = {}
    for name, unit in (("faults", "count"), ("brought", "B"), ("resident", "B")):
        shown = pprof("-top", "-nodecount=10000", f"-sample_index={name}", f"-unit={unit}", *words, path)
        found[name] = int(re.search(r"of (-?\d+)B? total", shown)[1])
    return found
