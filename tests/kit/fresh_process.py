"""A test that runs in a process of its own, where the size of the one that runs all tests would count."""

import os
import subprocess
import sys

import pytest

_FRESH = "WSTRACE_FRESH_PROCESS"


def ran_in_a_fresh_process(request: pytest.FixtureRequest) -> bool:
    """True when the test has just run in a process of its own; False within that one: there the test goes on."""
    if os.environ.get(_FRESH):
        return False
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", request.node.nodeid]
    environment = {**os.environ, _FRESH: "1"}
    done = subprocess.run(
        command, cwd=request.config.rootpath, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout
    if "1 passed" not in done.stdout:
        pytest.skip(done.stdout.partition("SKIPPED")[2].partition("\n")[0])
    return True
