"""The pytest plugin on Windows: what is counted there, what cannot be had, and tests in a pytest of their own."""

import os
import re
import subprocess
import sys

TESTS = """
import pytest
kept = []
def grow(): kept.append([bytearray(100_000) for _ in range(100)])

@pytest.mark.wstrace(new="1MiB")
def test_new(): grow()
@pytest.mark.wstrace(faults=1_000_000, new="64MiB")
def test_within(): grow()
@pytest.mark.wstrace(peak="1MiB")
def test_peak(): pass
@pytest.mark.wstrace(major=0)
def test_major(): pass
@pytest.mark.wstrace(isolated="fork")
def test_fork(): pass
@pytest.mark.wstrace(new="1MiB", isolated="exec", runs=2)
def test_exec(): grow()
def test_plain(): pass
"""


def test_budgets(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    words = [sys.executable, "-m", "pytest", "-p", "wstrace", "--wstrace", "-p", "no:cacheprovider", "-rA"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # of the others, which it and its children would import
    words.append(str(tmp_path / "test_it.py"))
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, timeout=200, check=False)
    output = (done.stdout + done.stderr).decode(errors="replace")
    assert {*re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)", output, re.MULTILINE)} == {
        ("FAILED", "test_new"), ("PASSED", "test_within"), ("FAILED", "test_peak"), ("FAILED", "test_major"),
        ("FAILED", "test_fork"), ("FAILED", "test_exec"), ("PASSED", "test_plain"),
    }, output  # fmt: skip
    for said in (r"wstrace: new 9\.\d MiB, limit 1\.0 MiB", r"new 9\.\d MiB, limit 1\.0 MiB \(the least of 2 runs",
                 "peak cannot be had here: Windows counts", "major cannot be had here: this system does not tell",
                 "this system has no fork; use isolated='exec'", "wstrace: most page faults"):  # fmt: skip
        assert re.search(said, output), (said, output)
