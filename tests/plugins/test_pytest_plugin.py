"""The pytest plugin: markers, isolation, what a test over its budget tells, and what other plugins see of it."""

import errno
import os
import platform
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext

import pytest
from kit.budgeted import properties, run, text_of
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
    assert "in all 7 tests" in said
    assert said.partition("most page faults")[2].count("test_it.py::") >= 3
    assert properties(pytester.path / "j.xml")["wstrace.faults"] > 2000


def test_settings_in_a_file_and_no_table(pytester):
    pytester.makeini("[pytest]\nwstrace = true\nwstrace_top = 0\n")
    result = run(pytester, test_it="@pytest.mark.wstrace(faults=0)\ndef test_it(): grow()\n")
    result.assert_outcomes(failed=1)
    assert "most page faults" not in text_of(result)
