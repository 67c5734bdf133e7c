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
def installed(tmp_path_factory):
    """The environment in which the package is installed; its files are those whose names stand in their blocks."""
    folder = tmp_path_factory.mktemp("thread_count")
    project, tests = folder / "project", []
    for text in blocks("python"):
        if (name := re.match(r'"""(\S+\.py)', text)) is None:
            tests.append(text)
            continue
        (project / name[1]).parent.mkdir(parents=True, exist_ok=True)
        (project / name[1]).write_text(text, "utf-8")
    (project / "pyproject.toml").write_text(PROJECT + "".join(blocks("toml")), "utf-8")
    (folder / "test_contracts.py").write_text("\n\n".join(tests), "utf-8")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", folder / "site", project], check=True)
    return folder, {**os.environ, "PYTHONPATH": str(folder / "site")}


def test_its_contracts_hold(installed):
    folder, environment = installed
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_contracts.py"], env=environment,
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_its_rows_and_the_column_of_its_enricher_are_in_the_file(installed, tmp_path):
    _, environment = installed
    word = re.search(r"`wstrace run (-s \S+ -o \S+) -- COMMAND`", PAGE)[1]
    code = "import os, threading, time\nfor _ in range(os.cpu_count()): threading.Timer(0.5, print).start()"
    done = wstrace("run", "-q", *word.split(), "--", sys.executable, "-c", code, environment=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    with open_trace(tmp_path / "x.wst") as trace:  # here, where the package is not installed
        rows = [
            row for batch in trace.batches("thread_count") for row in zip(batch["threads"], batch["busy"], strict=True)
        ]
    assert {busy for _, busy in rows} == {0, 1}
    assert all(busy == (threads > os.cpu_count()) for threads, busy in rows)


def test_a_session_uses_it_as_the_page_says(installed, tmp_path):
    _, environment = installed
    call = re.search(r"`(Session\(PID, .*?\))` uses it without an installation", PAGE)[1]
    code = ("import os, time\nfrom wstrace import Session\nfrom thread_count.source import ThreadCount\n"
            f"PID = os.getpid()\nwith {call} as session:\n    time.sleep(0.3)\n"
            "print(sum(len(b) for b in session.trace.batches('thread_count')) > 5)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
