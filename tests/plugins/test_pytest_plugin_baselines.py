"""The pytest plugin: baselines are recorded, judged, learned from and, where they do not fit, shown."""

import json
import sys

import pytest
from kit.budgeted import run, text_of

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: the real kernel")

IN_PLACE = """
import os
N = int(os.environ.get("MORE", 0))
def load(n): kept.append([bytearray(100_000) for _ in range(n)])
@pytest.mark.wstrace()
def test_here(): load(50 + N)
def test_unmarked(): load(50 + N)
"""
TESTS = f"""{IN_PLACE}
@pytest.mark.wstrace(isolated="fork")
def test_fork(): load(50 + N)
"""


def recorded(pytester: pytest.Pytester) -> dict:
    data = json.loads((pytester.path / ".wstrace" / "baseline.json").read_text())
    (environment,) = data["environments"].values()
    return environment


def test_a_growth_fails_and_is_reported_by_line(pytester, monkeypatch):
    result = run(pytester, "--wstrace-update", "--wstrace", looked=True, test_it=TESTS)
    result.assert_outcomes(passed=3)
    assert "wstrace: the baselines of 2 tests are in" in text_of(result)
    tests = recorded(pytester)["tests"]
    assert list(tests) == ["test_it.py::test_fork", "test_it.py::test_here"]
    assert tests["test_it.py::test_fork"]["runs"] == 5
    assert 1000 < tests["test_it.py::test_here"]["faults"] < 1500
    assert {"cpu", "kernel", "libc", "python"} <= set(recorded(pytester)["versions"])

    result = run(pytester, "--wstrace", "--wstrace-require-baseline", "-n1")
    result.assert_outcomes(passed=3)
    monkeypatch.setenv("MORE", "10")
    result = run(pytester, "--wstrace", looked=True)
    result.assert_outcomes(passed=1, failed=2)
    said = text_of(result)
    assert "more than in the baseline:" in said
    assert said.count(" over the baseline of ") >= 6
    monkeypatch.delenv("MORE")
    run(pytester, "--wstrace", "--wstrace-update", "-n2").assert_outcomes(passed=3)
    assert recorded(pytester)["tests"]["test_it.py::test_fork"]["runs"] == 10


def test_what_has_no_baseline_is_reported_or_fails(pytester):
    tests = TESTS.replace("def test_here", "def test_other")
    run(pytester, "--wstrace", "--wstrace-update", "-k", "here", test_it=TESTS).assert_outcomes(passed=1, deselected=2)
    result = run(pytester, "--wstrace", test_it=tests)
    result.assert_outcomes(passed=3)
    assert "wstrace: no baseline: test_it.py::test_other, test_it.py::test_fork" in text_of(result)
    result = run(pytester, "--wstrace", "--wstrace-require-baseline")
    result.assert_outcomes(passed=1, failed=2)
    assert "nothing is recorded of this test; record it: --wstrace-update" in text_of(result)


def test_a_baseline_of_another_machine_is_reported_or_fails(pytester):
    folder = pytester.mkdir(".wstrace")
    test = {"faults": 1, "spread": {"faults": 0}, "runs": 1}
    environments = {"pypy-3.11-win-amd64-4096": {"versions": {}, "tests": {"a": test}}}
    (folder / "baseline.json").write_text(json.dumps({"version": 1, "environments": environments}))
    result = run(pytester, "--wstrace", test_it=IN_PLACE)
    result.assert_outcomes(passed=2)
    assert "nothing is judged by a baseline: " in text_of(result)
    assert "only for pypy-3.11-win-amd64-4096; record one: --wstrace-update" in text_of(result)
    run(pytester, "--wstrace", "--wstrace-require-baseline").assert_outcomes(passed=1, failed=1)
    run(pytester, "--wstrace", "--wstrace-update").assert_outcomes(passed=2)
    assert len(json.loads((folder / "baseline.json").read_text())["environments"]) == 2


def test_a_merge_conflict_and_a_read_only_checkout(pytester):
    folder = pytester.mkdir(".wstrace")
    (folder / "baseline.json").write_text("<<<<<<< ours\n")
    result = run(pytester, "--wstrace", test_it=IN_PLACE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "has a merge conflict in it; take one side of each" in text_of(result)
    (folder / "baseline.json").unlink()
    folder.rmdir()
    folder.write_text("no folder")
    result = run(pytester, "--wstrace", "--wstrace-update", "-k", "here")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "wstrace: the baseline is not written: " in text_of(result)
