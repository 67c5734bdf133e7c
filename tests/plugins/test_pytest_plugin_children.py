"""The pytest plugin: tests that run in a fork or in a pytest of their own."""

import subprocess
import sys
from pathlib import Path

import pytest
from kit.budgeted import properties, run, text_of
from kit.command_line import until

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: the real kernel")


def test_a_forked_test_tells_what_it_would_tell_here(pytester):
    result = run(pytester, "--wstrace", "--junitxml=j.xml", "-rs", test_it="""
import logging, sys
FORK = pytest.mark.wstrace(faults=10**6, runs=2, isolated="fork")
@FORK
def test_passes(record_property, tmp_path):
    kept.append(1); record_property("own", 7); (tmp_path / "x").write_text("x")
@FORK
def test_fails():
    print("to stdout"); print("to stderr", file=sys.stderr); logging.getLogger().warning("to the log")
    assert {"a": 1} == {"a": 2}
@FORK
def test_skips(): pytest.skip("because")
@FORK
@pytest.mark.xfail(raises=ValueError)
def test_known(): raise ValueError
@FORK
@pytest.mark.xfail(raises=ValueError)
def test_unknown(): raise TypeError("another")
@FORK
def test_dies():
    import os; os.kill(os.getpid(), 11)
def test_after(): assert not kept
""")  # fmt: skip
    result.assert_outcomes(passed=2, failed=3, skipped=1, xfailed=1)
    said = text_of(result)
    for words in ("E       AssertionError: assert {'a': 1} == {'a': 2}", "to stdout", "to stderr", "to the log",
                  "SKIPPED [1] test_it.py:15: because", "TypeError: another", "ended early: SIGSEGV"):  # fmt: skip
        assert words in said, words
    assert said.count("to stdout") == 2  # in the source, and of the run which failed
    found = properties(pytester.path / "j.xml")
    assert found["own"] == 7
    assert found["wstrace.runs"] == 2


def test_the_least_of_all_runs_after_the_first_is_judged(pytester):
    """Runs bring 40, 0.4, 8 and 0.4 MB; the first one warms up."""
    result = run(pytester, "--wstrace", "--junitxml=j.xml", test_it="""
import pathlib
runs = pathlib.Path("runs")
runs.write_text("")
@pytest.mark.wstrace(peak="1MiB", runs=3, isolated="fork")
def test_it():
    n = len(runs.read_text()); runs.write_text("x" * (n + 1))
    bytearray(b"x") * (40_000_000, 400_000, 8_000_000, 400_000)[n]
""")  # fmt: skip
    result.assert_outcomes(passed=1)
    assert (pytester.path / "runs").read_text() == "xxxx"
    assert properties(pytester.path / "j.xml")["wstrace.peak"] < 1 << 20


def test_a_fork_beside_threads_is_refused(pytester):
    result = run(pytester, "--wstrace", test_it="""
import threading
end = threading.Event()
@pytest.mark.wstrace(isolated="fork")
def test_it(): pass
def setup_module(): threading.Thread(target=end.wait, name="worker-7").start()
def teardown_module(): end.set()
""")  # fmt: skip
    result.assert_outcomes(failed=1)
    assert "cannot be had beside other threads (worker-7)" in text_of(result)


def test_exec_pays_for_what_it_imports_and_has_its_own_fixtures(pytester):
    result = run(pytester, "--wstrace", "--junitxml=j.xml", test_it="""
import os, sys
@pytest.fixture
def parent(): return os.getppid()
@pytest.mark.wstrace(faults=20, runs=2, isolated="exec")
@pytest.mark.parametrize("x", ["a b"])
def test_import(parent, x):
    assert "sqlite3" not in sys.modules and "PYTEST_CURRENT_TEST" in os.environ
    import xml.dom.minidom, sqlite3
    print("by", parent)
@pytest.mark.wstrace(isolated="exec")
def test_fails(parent): print("out of it"); assert parent == 1
@pytest.mark.wstrace(isolated="exec")
def test_error(no_fixture): pass
@pytest.mark.wstrace(isolated="exec")
def test_skips(): pytest.skip("there")
@pytest.mark.wstrace(isolated="exec")
def test_dies(): os._exit(3)
""")  # fmt: skip
    result.assert_outcomes(failed=4, skipped=1)
    said = text_of(result)
    for words in ("faults, limit 20 (the least of 2 runs", "assert parent == 1", "out of it", "'no_fixture' not found",
                  "ended with exit code 3"):  # fmt: skip
        assert words in said, words


def test_coverage_of_a_forked_test_is_kept(pytester):
    pytest.importorskip("coverage")
    pytester.makepyfile(mine="def called():\n    return 1\n\n\ndef never():\n    return 2\n")
    pytester.makepyfile(
        test_it="import pytest, mine\n@pytest.mark.wstrace(isolated='fork')\ndef test_it():\n    mine.called()\n"
    )
    (pytester.path / ".coveragerc").write_text("[run]\npatch = _exit\nparallel = true\n")
    command = [sys.executable, "-m", "coverage"]
    run_it = [*command, "run", "--source=.", "-m", "pytest", "-q", "--wstrace", "-p", "no:cacheprovider"]
    done = subprocess.run(run_it, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    subprocess.run([*command, "combine", "-q"], timeout=60, check=True)
    shown = subprocess.run([*command, "report", "-m"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "mine.py 4 1 75% 6" in " ".join(shown.split())


@pytest.mark.parametrize("how", ["fork", "exec"])
def test_a_child_ends_with_a_pytest_that_is_killed(pytester, how):
    pytester.makepyfile(
        test_it=f"""
        import os, pathlib, pytest, time
        @pytest.mark.wstrace(isolated={how!r})
        def test_it():
            pathlib.Path("pid.part").write_text(str(os.getpid()))
            os.rename("pid.part", "pid")
            time.sleep(300)
        """
    )
    words = [sys.executable, "-m", "pytest", "--wstrace", "-p", "no:cacheprovider"]
    pytest_ = subprocess.Popen(words, cwd=pytester.path, stdout=subprocess.DEVNULL)
    try:
        until(lambda: (pytester.path / "pid").exists() or pytest_.poll() is not None)
        child = int((pytester.path / "pid").read_text())
    finally:
        pytest_.kill()
        pytest_.wait()
    until(lambda: not _runs(child))


def _runs(pid: int) -> bool:
    """Whether it is there, and no zombie that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_child_with_a_cut_answer_is_reported(pytester):
    shown = run(
        pytester,
        "--wstrace",
        test_it="""
@pytest.mark.wstrace(isolated="exec")
def test_it(pytestconfig):
    import atexit, pathlib
    answer = pathlib.Path(pytestconfig.option.basetemp).with_name("reports.json")
    atexit.register(lambda: answer.write_bytes(answer.read_bytes()[:-5]))
""",
    )
    shown.assert_outcomes(failed=1)
    assert "ended with exit code 0 and without a whole answer" in text_of(shown)


def test_a_fork_of_the_test_gives_no_answer_of_its_own(pytester):
    """Both return from the test; what the test forked is not the child that ran it."""
    result = run(pytester, "--wstrace", test_it="""
import os
@pytest.mark.wstrace(faults=10**6, isolated="fork")
def test_it():
    if pid := os.fork():
        os.waitpid(pid, 0)
""")  # fmt: skip
    result.assert_outcomes(passed=1)
