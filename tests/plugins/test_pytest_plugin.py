"""The pytest plugin: markers, isolation, what a test over its budget tells, and what other plugins see of it."""

import errno
import json
import os
import platform
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from kit.budgeted import properties, run, text_of
from kit.command_line import until
from kit.refused import refusing

from wstrace.errors import Unavailable
from wstrace_plugins.pytest.meter import Meter

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux: the real kernel")


def test_without_the_option_nothing_is_imported_and_nothing_judged(pytester):
    heavy = "sorted(sys.modules.keys() & {'numpy', 'psutil', 'wstrace', 'wstrace_plugins.os'})"
    result = run(pytester, "--strict-markers", looked=True, test_off=f"""
import sys
@pytest.mark.wstrace(faults=0)
def test_off(): grow(); assert {heavy} == []
""")  # fmt: skip
    result.assert_outcomes(passed=1)
    assert "wstrace:" not in text_of(result)


def test_the_module_itself_needs_no_pytest():
    code = "import sys; import wstrace_plugins.pytest; assert not {'pytest', 'numpy', 'wstrace'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_is_there_without_being_named(pytester):
    pytester.makepyfile("def test_it(pytestconfig): assert pytestconfig.option.wstrace")
    pytester.runpytest_subprocess("--wstrace", "-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("peek=1", "wstrace(peek=...) is no figure; did you mean 'peak'?"),
        ("'8MiB'", "write wstrace(peak='8MiB', faults=3000)"),
        ("peak='much'", "wstrace(peak='much'): 'much' is not a size such as 16MiB"),
        ("faults='8MiB'", "give a number of faults"),
        ("new=-1", "give a size such as '8MiB'"),
        ("runs=3", "a test runs once in its own process; add isolated='fork' or isolated='exec'"),
        ("runs=0", "give a number from 1 to 1000"),
        ("isolated='thread'", "known: 'no', 'fork', 'exec'"),
    ],
)
def test_a_marker_that_cannot_be_fails_its_test(pytester, marker, said):
    pytester.makepyfile(test_it=f"import pytest\n@pytest.mark.wstrace({marker})\ndef test_it(): pass\n")
    result = pytester.inline_run("--wstrace", "-p", "no:cacheprovider", "-q")
    _, _, (failed,) = result.listoutcomes()
    assert said in str(failed.longrepr)


def test_a_marker_that_a_conftest_adds_counts_and_the_nearest_says_what(pytester):
    pytester.makeconftest("""
import pytest
def pytest_collection_modifyitems(items):
    for item in items: item.add_marker(pytest.mark.wstrace(faults=0, new=1 << 40))
""")
    result = run(pytester, "--wstrace", test_it="""
def test_far(): grow()
@pytest.mark.wstrace(faults=10**6)
def test_near(): grow()
""")  # fmt: skip
    result.assert_outcomes(passed=1, failed=1)
    assert "FAILED test_it.py::test_far" in text_of(result)


def test_the_figures_are_those_of_the_test(pytester):
    """10 MB that stay, 40 MB that go: known to the page, but for what Python itself needs."""
    result = run(pytester, "--wstrace", "--junitxml=j.xml", test_it="""
import mmap
@pytest.mark.wstrace()
def test_it():
    kept.append(mmap.mmap(-1, 10 << 20)); kept[0].write(b"x" * (10 << 20))
    with mmap.mmap(-1, 40 << 20) as gone:
        for at in range(0, 40 << 20, 4096): gone[at] = 1
""")  # fmt: skip
    result.assert_outcomes(passed=1)
    found = properties(pytester.path / "j.xml")
    assert abs(found["wstrace.peak"] - (50 << 20)) < 1 << 20
    assert abs(found["wstrace.new"] - (10 << 20)) < 1 << 20
    assert 0 <= found["wstrace.faults"] - found["wstrace.major"] - (50 << 8) < 4096
    assert "wstrace.runs" not in found


def test_over_the_limits_is_a_failure_that_names_the_line(pytester):
    result = run(pytester, "--wstrace", looked=True, test_it="""
@pytest.mark.wstrace(peak="1MiB", new="1MiB", faults=100, major=10**6)
def test_it(): grow()
""")  # fmt: skip
    result.assert_outcomes(failed=1)
    said = text_of(result)
    result.stdout.re_match_lines([r"wstrace: peak 9\.\d MiB, limit 1\.0 MiB", r"wstrace: new 9\.\d MiB, limit 1\.0 MiB",
                                  r"wstrace: 2,[34]\d\d faults, limit 100"])  # fmt: skip
    assert "major" not in said
    if os.geteuid() == 0:
        result.stdout.re_match_lines([r" +9\.\d MiB +9\.\d MiB +grow.*\btest_it\.py:3"])
    assert "_pytest" not in said


def test_what_fails_by_itself_is_not_judged(pytester):
    result = run(pytester, "--wstrace", test_it="""
@pytest.mark.wstrace(faults=0)
def test_fails(): grow(); assert 1 == 2
@pytest.mark.wstrace(faults=0)
def test_skips(): grow(); pytest.skip("no")
@pytest.mark.wstrace(faults=0)
@pytest.mark.xfail(strict=True)
def test_is_known(): grow()
""")  # fmt: skip
    result.assert_outcomes(failed=1, skipped=1, xfailed=1)
    assert "assert 1 == 2" in text_of(result)
    assert "limit 0" not in text_of(result)


def test_written_counts_the_pages_that_were_written(pytester):
    result = run(pytester, "--wstrace", "--junitxml=j.xml", looked=True, test_it="""
import mmap
memory = mmap.mmap(-1, 16 << 20); memory.write(b"x" * (16 << 20))
@pytest.mark.wstrace(written="4MiB")
def test_it():
    for at in range(0, 8 << 20, 4096): memory[at] = 1
""")  # fmt: skip
    if "written cannot be had" in text_of(result):
        result.assert_outcomes(failed=1)
        pytest.skip("this kernel has no write watch for other processes")
    result.assert_outcomes(failed=1)
    assert 0 <= properties(pytester.path / "j.xml")["wstrace.written"] - (8 << 20) < 4 << 20


def test_classes_of_unittest_and_coroutines(pytester):
    result = run(pytester, "--wstrace", test_it="""
import asyncio, unittest
class TestPlain(unittest.TestCase):
    def setUp(self): self.x = 1
    @pytest.mark.wstrace(faults=10)
    def test_over(self): grow(); assert self.x
    @pytest.mark.wstrace(faults=10**6, isolated="fork")
    def test_fork(self): grow(); self.assertEqual(self.x, 1)
    @pytest.mark.wstrace(faults=10**6, isolated="fork")
    def test_fork_fails(self): self.assertEqual(self.x, 2)
    @pytest.mark.wstrace(faults=10**6, isolated="exec")
    def test_exec(self): grow(); self.assertEqual(self.x, 1)
class TestAsync(unittest.IsolatedAsyncioTestCase):
    @pytest.mark.wstrace(faults=10)
    async def test_over(self): await asyncio.sleep(0); grow()
    @pytest.mark.wstrace(faults=10**6, isolated="fork")
    async def test_fork(self): await asyncio.sleep(0); grow()
""")  # fmt: skip
    result.assert_outcomes(failed=3, passed=3)
    assert "AssertionError: 1 != 2" in text_of(result)


def test_the_fixture(pytester):
    """Memory of its own: what malloc gives may have been there, freed by what the start took (compiling modules)."""
    run(pytester, test_it="""
import mmap
def test_it(wstrace_delta):
    with wstrace_delta() as found:
        kept = mmap.mmap(-1, 10 << 20)
        for at in range(0, 10 << 20, 4096): kept[at] = 1
    assert 9 << 20 < found.new_bytes < 13 << 20
""").assert_outcomes(passed=1)  # fmt: skip


def test_a_figure_that_cannot_be_had_is_no_pass(pytester):
    pytester.makeconftest("""
from wstrace.errors import Unavailable
from wstrace_plugins.pytest.linux import backend
def refuse(): raise Unavailable("this kernel does not count it", "use another one")
backend.reset_peak = refuse
""")
    result = run(pytester, "--wstrace", test_it="""
@pytest.mark.wstrace(peak="1GiB")
def test_peak(): pass
@pytest.mark.wstrace(new="1GiB")
def test_new(): pass
""")  # fmt: skip
    result.assert_outcomes(passed=1, failed=1)
    assert "wstrace: peak cannot be had here: this kernel does not count it; use another one" in text_of(result)


class Windows:
    """A system that has what Windows has."""

    def without_free_memory(self) -> AbstractContextManager[None]:
        return nullcontext()

    def faults(self) -> tuple[int, int | None]:
        return 7, None

    def resident(self) -> int:
        return 4096

    def reset_peak(self) -> None:
        raise Unavailable("of the whole life only")

    def peak(self) -> int:
        raise Unavailable("of the whole life only")


#: what earlier code has left in the heap, by the name of what it is like
LEFT = {
    "nothing": "",
    "one large part": "left = [bytes(100_000) for _ in range(200)]; last = bytes(100_000); del left",
    "holes": "left = [bytes(20_000) for _ in range(4_000)]; del left[::2]",
    "small holes": "left = [bytes(6_000) for _ in range(8_000)]; del left[::2]",
}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library gives free memory back")
@pytest.mark.parametrize("left", LEFT)
def test_memory_that_earlier_tests_have_left_is_not_found(left):
    """As what pytest leaves that has just compiled the file of the tests: a test took 12 % less, or 4 % more, then.

    A list that grows is in the heap only as long as it finds room there, and the pages behind it count, too.
    """
    program = """if True:  # in a process of its own, where nothing but this has been in the heap
        import sys
        from wstrace_plugins.pytest.meter import Meter, backend, clean_heap
        exec(sys.argv[1])
        with clean_heap(backend()):
            meter = Meter(backend(), ()).start()
            taken, grown = [bytes(15_000) for _ in range(500)], []
            for n in range(200_000): grown.append(None)
            meter.stop()
        print(meter.figures["faults"], meter.figures["peak"])
    """

    def figures(text):
        words = [sys.executable, "-c", program, text]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        return [int(word) for word in done.stdout.split()]

    for found, alone in zip(figures(LEFT[left]), figures(""), strict=True):
        assert found == pytest.approx(alone, rel=0.01)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library gives free memory back")
def test_free_memory_is_found_again_after_it():
    """Held until the end of the process, it would be lost to all later tests."""
    program = """if True:
        from wstrace_plugins.pytest.meter import backend, clean_heap
        left = [bytes(20_000) for _ in range(2_000)]
        first, last, behind = min(map(id, left)), max(map(id, left)), bytes(20_000)
        def found(): return sum(first <= id(one) <= last for one in [bytes(20_000) for _ in range(2_000)])
        del left
        with clean_heap(backend()):
            meanwhile = found()
        print(meanwhile, found())
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    meanwhile, again = map(int, done.stdout.split())
    assert meanwhile == 0
    assert again > 1000


@pytest.mark.parametrize("figure", ["peak", "major"])
def test_a_system_that_lacks_figures(figure):
    with pytest.raises(Unavailable, match=f"wstrace: {figure} cannot be had here"):
        Meter(Windows(), {figure})
    meter = Meter(Windows(), {"faults", "new"}).start()
    meter.stop()
    assert meter.figures == {"faults": 0, "new": 0}


def test_without_events_files_and_kinds_are_reported_and_what_lifts_it(pytester):
    pytester.makeconftest(refusing("perf_event_open", errno.EPERM))
    result = run(pytester, "--wstrace", looked=True, test_it="""
@pytest.mark.wstrace(new="1MiB")
def test_it(): grow()
""")  # fmt: skip
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [r" +[89]\.\d MiB +[89]\.\d MiB +\[(heap|anon)\]", r"\(files and kinds of memory only: .*; .*\)"]
    )


def test_workers_of_xdist(pytester):
    result = run(pytester, "--wstrace", "--wstrace-top=3", "-n2", "--junitxml=j.xml", looked=True, test_it="""
@pytest.mark.wstrace(new="1MiB")
def test_over(): grow()
@pytest.mark.wstrace(new="100MiB", isolated="fork", runs=2)
def test_fork(): grow()
@pytest.mark.wstrace(new="100MiB", isolated="exec")
def test_exec(): grow()
@pytest.mark.parametrize("n", range(4))
def test_plain(n): pass
""")  # fmt: skip
    result.assert_outcomes(failed=1, passed=6)
    said = text_of(result)
    assert "in 7 tests" in said
    assert said.partition("most page faults")[2].count("test_it.py::") >= 3
    assert properties(pytester.path / "j.xml")["wstrace.faults"] > 2000


def test_settings_in_a_file_and_no_table(pytester):
    pytester.makeini("[pytest]\nwstrace = true\nwstrace_top = 0\n")
    result = run(pytester, test_it="@pytest.mark.wstrace(faults=0)\ndef test_it(): grow()\n")
    result.assert_outcomes(failed=1)
    assert "most page faults" not in text_of(result)


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
