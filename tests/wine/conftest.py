"""These tests run inside Wine (tests/wine/run): a Windows CPython, mostly with the stand-in psapi.dll."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.command_line import wstrace

HERE = Path(__file__).parent
ON_WINDOWS = sys.platform == "win32"


def pytest_ignore_collect(collection_path, config):
    """On other systems nothing here can be imported; one line says so."""
    if not ON_WINDOWS and collection_path.name.startswith("test_wine_"):
        return collection_path.name != "test_wine_here.py"
    return None


@pytest.fixture
def out(tmp_path):
    """Where a trace file goes that the Linux side reads afterwards."""
    folder = os.environ.get("WSTRACE_WINE_OUT")
    return Path(folder) if folder else tmp_path


@pytest.fixture
def command():
    """Runs `python -m wstrace ARGUMENTS`: (exit code as the signed number that it is, stdout, stderr)."""

    def run(*words):
        done = wstrace(*words)
        return (done.returncode ^ 1 << 31) - (1 << 31), done.stdout, done.stderr

    return run


@pytest.fixture
def target():
    """Starts a script of this folder; gives the process. Its stdin is a pipe that the test closes to end it."""
    started = []

    def start(script, *arguments):
        process = subprocess.Popen(
            [sys.executable, str(HERE / script), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
