"""docs/write-a-source.md: its package, installed from the page's own text, does what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit.command_line import wstrace

from wstrace import open_trace

PAGE = (Path(__file__).parents[1] / "docs" / "write-a-source.md").read_text("utf-8")
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "thread-count"
version = "1.0"
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with the package in `site` and the page's tests; a file's name stands first in its block."""
    folder = tmp_path_factory.mktemp("thread_count")
    (folder / "thread_count").mkdir()
    for number, text in enumerate(blocks("python")):
        name = re.match(r'"""(\S+\.py)', text)
        (folder / (name[1] if name else f"test_{number}.py")).write_text(text, "utf-8")
    (folder / "pyproject.toml").write_text(PROJECT + "".join(blocks("toml")), "utf-8")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", folder / "site", folder], check=True)
    return folder


def python(package: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, *words], env={**os.environ, "PYTHONPATH": str(package / "site")},
                          cwd=package, capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_contracts_hold(package):
    assert " passed" in python(
        package, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, package.glob("test_*"))
    )


def test_its_rows_and_the_column_of_its_enricher_are_in_the_file(package, tmp_path):
    words = re.search(r"`wstrace run (-s \S+ -o \S+) -- COMMAND`", PAGE)[1].split()
    code = "import os, threading, time\nfor _ in range(os.cpu_count()): threading.Timer(0.5, print).start()"
    done = wstrace("run", "-q", *words, "--", sys.executable, "-c", code, cwd=tmp_path,
                   environment={"PYTHONPATH": str(package / "site")})  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    with open_trace(tmp_path / "x.wst") as trace:  # here, where the package is not installed
        rows = [row for b in trace.batches("thread_count") for row in zip(b["threads"], b["busy"], strict=True)]
    assert {busy for _, busy in rows} == {0, 1}
    assert all(busy == (threads > os.cpu_count()) for threads, busy in rows)


def test_a_session_uses_it_as_the_page_says(package):
    call = re.search(r"`(Session\(PID, .*?\))` uses it without an installation", PAGE)[1]
    code = ("import os, time\nfrom wstrace import Session\nfrom thread_count.source import ThreadCount\n"
            f"PID = os.getpid()\nwith {call} as session:\n    time.sleep(0.3)\n"
            "print(sum(len(b) for b in session.trace.batches('thread_count')) > 5)")  # fmt: skip
    assert python(package, "-c", code) == "True\n"
